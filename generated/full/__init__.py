# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/full.yaml
#   content hash  ee4ef705d6c5e9fa
#   text hash     6d25e57e764419b0
#   render with   attnforge render specs/full.yaml
"""Softmax attention without a mask."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
