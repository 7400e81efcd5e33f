# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama4_chunked.yaml
#   content hash  3f0d50234e0fc856
#   text hash     b858090ec0e06015
#   render with   attnforge render specs/llama4_chunked.yaml
"""Causal attention inside chunks of 8192 tokens with rotary embedding of neighbouring components.

After Llama 4 (Meta, 2025), the layers with rotary embedding.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
