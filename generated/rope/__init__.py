# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope.yaml
#   content hash  d670715022ab815c
#   text hash     d9a7345d1375bd8a
#   render with   attnforge render specs/rope.yaml
"""Causal attention with rotary embedding, and as many key heads as query heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
