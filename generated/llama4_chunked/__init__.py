# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama4_chunked.yaml
#   content hash  8eb4670d33ba8508
#   text hash     4c81dac7ea08d518
#   render with   attnforge render specs/llama4_chunked.yaml
"""Causal attention inside chunks of 8192 tokens with rotary embedding of neighbouring components.

After Llama 4 (Meta, 2025), the layers with rotary embedding.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
