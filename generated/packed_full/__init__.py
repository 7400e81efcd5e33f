# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_full.yaml
#   content hash  e5f5c36d8b3815cd
#   text hash     276cd6501998175c
#   render with   attnforge render specs/packed_full.yaml
"""Softmax attention without a mask, for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
