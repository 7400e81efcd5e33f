# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal.yaml
#   content hash  1b5925622a0b3f90
#   text hash     76246683b7d0cadf
#   render with   attnforge render specs/causal.yaml
"""Causal attention with grouped heads.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
