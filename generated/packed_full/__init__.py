# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_full.yaml
#   content hash  f8c7be16b637f890
#   text hash     bd10367bca5ca748
#   render with   attnforge render specs/packed_full.yaml
"""Softmax attention without a mask, for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
