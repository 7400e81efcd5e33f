# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_full.yaml
#   content hash  6cce2d997e1eee8c
#   text hash     e93e54637df8f5a4
#   render with   attnforge render specs/packed_full.yaml
"""Softmax attention without a mask, for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
