# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope.yaml
#   content hash  214788d00e33a450
#   text hash     223ae1fac32593c4
#   render with   attnforge render specs/rope.yaml
"""Causal attention with rotary embedding, and as many key heads as query heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
