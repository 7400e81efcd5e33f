# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/qwen3.yaml
#   content hash  b0e7841f6ad11906
#   text hash     3c4f7eae90cb56e0
#   render with   attnforge render specs/qwen3.yaml
"""Causal attention with rotary embedding and grouped heads, as in Qwen3.

After Qwen3 (Alibaba, 2025), arXiv:2505.09388.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
