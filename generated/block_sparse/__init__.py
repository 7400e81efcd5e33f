# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/block_sparse.yaml
#   content hash  bc58326364cc6372
#   text hash     17e45772f0e1d68a
#   render with   attnforge render specs/block_sparse.yaml
"""Attention between the blocks of 64 positions that a mask allows.

After Sparse Transformer (2019), arXiv:1904.10509.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
