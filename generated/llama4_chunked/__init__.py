# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama4_chunked.yaml
#   content hash  50189603df8581b1
#   text hash     1b03aa635bbb3f34
#   render with   attnforge render specs/llama4_chunked.yaml
"""Causal attention inside chunks of 8192 tokens with rotary embedding of neighbouring components.

After Llama 4 (Meta, 2025), the layers with rotary embedding.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
