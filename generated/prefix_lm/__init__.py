# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/prefix_lm.yaml
#   content hash  5985b3a033be9343
#   text hash     a08ac2cc8643c1de
#   render with   attnforge render specs/prefix_lm.yaml
"""Causal attention with a prefix, of each sequence's own length, that every query sees."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
