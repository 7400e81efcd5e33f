# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama4_chunked.yaml
#   content hash  5f174174112c8092
#   text hash     27202d9b5d59243b
#   render with   attnforge render specs/llama4_chunked.yaml
"""Causal attention inside chunks of 8192 tokens with rotary embedding of neighbouring components.

After Llama 4 (Meta, 2025), the layers with rotary embedding.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
