# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/flash1.yaml
#   content hash  02013639b63d1886
#   text hash     5e3c43054d4d3f38
#   render with   attnforge render specs/flash1.yaml
"""Causal attention in the order of the first FlashAttention, forward only: each tile of keys takes all queries, whose sums stand in memory.

After FlashAttention (2022), arXiv:2205.14135.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
