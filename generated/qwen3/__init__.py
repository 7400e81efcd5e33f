# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/qwen3.yaml
#   content hash  0401c605863a25e3
#   text hash     5bc21326b8d94891
#   render with   attnforge render specs/qwen3.yaml
"""Causal attention with rotary embedding and grouped heads, as in Qwen3.

After Qwen3 (Alibaba, 2025), arXiv:2505.09388.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
