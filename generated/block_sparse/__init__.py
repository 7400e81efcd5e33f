# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/block_sparse.yaml
#   content hash  2a021fe3267f078b
#   text hash     4ef6a63d5d782176
#   render with   attnforge render specs/block_sparse.yaml
"""Attention between the blocks of 64 positions that a mask allows.

After Sparse Transformer (2019), arXiv:1904.10509.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
