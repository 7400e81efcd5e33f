# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/block_sparse.yaml
#   content hash  48dbf2500dc9dd6d
#   text hash     6f93d2dfb52daf52
#   render with   attnforge render specs/block_sparse.yaml
"""Attention between the blocks of 64 positions that a mask allows.

After Sparse Transformer (2019), arXiv:1904.10509.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
