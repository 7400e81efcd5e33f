# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/flash1.yaml
#   content hash  85661f874e1913bc
#   text hash     a284853d02f0157b
#   render with   attnforge render specs/flash1.yaml
"""Causal attention in the order of the first FlashAttention, forward only: each tile of keys processes all queries, with the accumulators in memory.

After FlashAttention (2022), arXiv:2205.14135.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
