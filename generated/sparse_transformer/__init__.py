# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sparse_transformer.yaml
#   content hash  c4c82ee4af481624
#   text hash     4bf6c16db5b813b4
#   render with   attnforge render specs/sparse_transformer.yaml
"""Causal attention to a query's own 128 keys and to the last 8 of every 128.

After Sparse Transformer (2019), arXiv:1904.10509, the fixed pattern.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
