# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/qwen3.yaml
#   content hash  501ee2d5c4439116
#   text hash     9b43cd27f6b61773
#   render with   attnforge render specs/qwen3.yaml
"""Causal attention with rotary embedding and grouped heads, as in Qwen3.

After Qwen3 (Alibaba, 2025), arXiv:2505.09388.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
