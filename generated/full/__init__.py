# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/full.yaml
#   content hash  ea39e8bdb045f0dd
#   text hash     5990c3ea225f7ce8
#   render with   attnforge render specs/full.yaml
"""Softmax attention without a mask."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
