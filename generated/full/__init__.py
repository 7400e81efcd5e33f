# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/full.yaml
#   content hash  4f58c26427f5d4d9
#   text hash     24f78fcc5deaee56
#   render with   attnforge render specs/full.yaml
"""Softmax attention without a mask."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
