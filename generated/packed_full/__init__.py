# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_full.yaml
#   content hash  d7c93033fb70c8af
#   text hash     4d5999f0d15f66e9
#   render with   attnforge render specs/packed_full.yaml
"""Softmax attention without a mask, for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
