# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/full.yaml
#   content hash  72d78487be99ed43
#   text hash     12a64ba5f22ee9bf
#   render with   attnforge render specs/full.yaml
"""Softmax attention without a mask."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
