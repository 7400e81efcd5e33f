# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/flash1.yaml
#   content hash  d17bdbeda60985f7
#   text hash     1c394223751a7908
#   render with   attnforge render specs/flash1.yaml
"""Causal attention in the order of the first FlashAttention, forward only: each tile of keys takes all queries, whose sums stand in memory.

After FlashAttention (2022), arXiv:2205.14135.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
