# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sparse_transformer.yaml
#   content hash  96582704f8abcb3e
#   text hash     53403ace4cf42b52
#   render with   attnforge render specs/sparse_transformer.yaml
"""Causal attention to a query's own 128 keys and to the last 8 of every 128.

After Sparse Transformer (2019), arXiv:1904.10509, the fixed pattern.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
