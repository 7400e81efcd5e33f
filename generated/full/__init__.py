# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/full.yaml
#   content hash  8fc780798554391c
#   text hash     101b4b4d480ea3ed
#   render with   attnforge render specs/full.yaml
"""Softmax attention without a mask."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
