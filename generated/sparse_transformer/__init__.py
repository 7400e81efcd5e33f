# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sparse_transformer.yaml
#   content hash  fe7c6482d3a97dc8
#   text hash     d1fec5d6c6cb6616
#   render with   attnforge render specs/sparse_transformer.yaml
"""Causal attention to a query's own 128 keys and to the last 8 of every 128.

After Sparse Transformer (2019), arXiv:1904.10509, the fixed pattern.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
