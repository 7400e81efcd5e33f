# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/prefix_lm.yaml
#   content hash  519fb62e329d948d
#   text hash     d8b15f90aaded34d
#   render with   attnforge render specs/prefix_lm.yaml
"""Causal attention with a prefix, of each sequence's own length, that every query sees.

After T5 (Google, 2019), arXiv:1910.10683, section 3.2.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
