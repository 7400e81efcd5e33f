# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/prefix_lm.yaml
#   content hash  2a50b35afaf2d671
#   text hash     946ff1ca5fbf5e9f
#   render with   attnforge render specs/prefix_lm.yaml
"""Causal attention with a prefix, of each sequence's own length, that every query sees."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
