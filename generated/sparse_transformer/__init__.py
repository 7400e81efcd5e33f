# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sparse_transformer.yaml
#   content hash  a1f855a5c630bebf
#   text hash     8a3e0e8e12512d7f
#   render with   attnforge render specs/sparse_transformer.yaml
"""Causal attention to a query's own 128 keys and to the last 8 of every 128.

After Sparse Transformer (2019), arXiv:1904.10509, the fixed pattern.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
