# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope.yaml
#   content hash  358b674a0849cd2c
#   text hash     556a9a87c969b2c1
#   render with   attnforge render specs/rope.yaml
"""Causal attention with rotary embedding, and as many key heads as query heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
