# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/prefix_lm.yaml
#   content hash  976f6bab69fde911
#   text hash     8635dd45d7a9ff21
#   render with   attnforge render specs/prefix_lm.yaml
"""Causal attention with a prefix, of each sequence's own length, that every query sees."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
