# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/prefix_lm.yaml
#   content hash  26bdb88c9544cd3f
#   text hash     e2b0f36df9c85ce8
#   render with   attnforge render specs/prefix_lm.yaml
"""Causal attention with a prefix, of each sequence's own length, that every query sees.

After T5 (Google, 2019), arXiv:1910.10683, section 3.2.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
