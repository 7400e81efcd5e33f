# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/block_sparse.yaml
#   content hash  fa143e13f0c07ecf
#   text hash     370511d89a737d64
#   render with   attnforge render specs/block_sparse.yaml
"""Attention between the blocks of 64 positions that a mask allows.

After Sparse Transformer (2019), arXiv:1904.10509.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
