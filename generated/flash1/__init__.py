# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/flash1.yaml
#   content hash  e20e025b1ac6eeb0
#   text hash     61863e98fd943087
#   render with   attnforge render specs/flash1.yaml
"""Causal attention in the order of the first FlashAttention, forward only: each tile of keys processes all queries, with the accumulators in memory.

After FlashAttention (2022), arXiv:2205.14135.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
