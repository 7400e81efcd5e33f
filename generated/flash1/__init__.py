# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/flash1.yaml
#   content hash  7a2ad9c26f28efd2
#   text hash     fc5e37d0d4793878
#   render with   attnforge render specs/flash1.yaml
"""Causal attention in the order of the first FlashAttention, forward only: each tile of keys processes all queries, with the accumulators in memory.

After FlashAttention (2022), arXiv:2205.14135.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
