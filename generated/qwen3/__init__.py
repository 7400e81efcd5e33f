# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/qwen3.yaml
#   content hash  b2d1494aec6e14d8
#   text hash     21c0d1b2e0f94795
#   render with   attnforge render specs/qwen3.yaml
"""Causal attention with rotary embedding and grouped heads, as in Qwen3.

After Qwen3 (Alibaba, 2025), arXiv:2505.09388.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
