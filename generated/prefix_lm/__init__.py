# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/prefix_lm.yaml
#   content hash  87e4bd1e343cd8bd
#   text hash     a6a54d5c190c5240
#   render with   attnforge render specs/prefix_lm.yaml
"""Causal attention with a prefix, of each sequence's own length, that every query sees.

After T5 (Google, 2019), arXiv:1910.10683, section 3.2.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
