# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/prefix_lm.yaml
#   content hash  11d4c730cd5b3196
#   text hash     93bbcc9d672c3dee
#   render with   attnforge render specs/prefix_lm.yaml
"""Causal attention with a prefix, of each sequence's own length, that every query sees."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
