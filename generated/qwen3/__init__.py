# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/qwen3.yaml
#   content hash  cbc7f3c7e76b8d7d
#   text hash     3c37279677824969
#   render with   attnforge render specs/qwen3.yaml
"""Causal attention with rotary embedding and grouped heads, as in Qwen3.

After Qwen3 (Alibaba, 2025), arXiv:2505.09388.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
