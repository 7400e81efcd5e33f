# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sparse_transformer.yaml
#   content hash  03b2d070e697e0bb
#   text hash     17f773a93084125c
#   render with   attnforge render specs/sparse_transformer.yaml
"""Causal attention to a query's own 128 keys and to the last 8 of every 128.

After Sparse Transformer (2019), arXiv:1904.10509, the fixed pattern.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
