# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama4_chunked.yaml
#   content hash  c005c37abc865962
#   text hash     94851e0e29fe4303
#   render with   attnforge render specs/llama4_chunked.yaml
"""Causal attention inside chunks of 8192 tokens with rotary embedding of neighbouring components.

After Llama 4 (Meta, 2025), the layers with rotary embedding.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
