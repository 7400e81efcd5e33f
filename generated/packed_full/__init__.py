# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_full.yaml
#   content hash  62eb5b03692cb566
#   text hash     edfa29ff67085cd3
#   render with   attnforge render specs/packed_full.yaml
"""Softmax attention without a mask, for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
