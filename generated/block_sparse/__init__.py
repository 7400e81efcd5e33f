# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/block_sparse.yaml
#   content hash  d18bc8149e795034
#   text hash     fc6b3b09f26f44dc
#   render with   attnforge render specs/block_sparse.yaml
"""Attention between the blocks of 64 positions that a mask allows.

After Sparse Transformer (2019), arXiv:1904.10509.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
