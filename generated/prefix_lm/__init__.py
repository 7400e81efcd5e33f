# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/prefix_lm.yaml
#   content hash  76c0ca43f58e8c70
#   text hash     8b5c4bb40ca06070
#   render with   attnforge render specs/prefix_lm.yaml
"""Causal attention with a prefix, of each sequence's own length, that every query sees.

After T5 (Google, 2019), arXiv:1910.10683, section 3.2.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
