# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope.yaml
#   content hash  a4f593b0492a5457
#   text hash     e3260a32021c2c53
#   render with   attnforge render specs/rope.yaml
"""Causal attention with rotary embedding, and as many key heads as query heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
