# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/prefix_lm.yaml
#   content hash  9c5958172360fc07
#   text hash     13b281e7798f7d6a
#   render with   attnforge render specs/prefix_lm.yaml
"""Causal attention with a prefix, of each sequence's own length, that every query sees.

After T5 (Google, 2019), arXiv:1910.10683, section 3.2.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
