# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal.yaml
#   content hash  8855f4f887082850
#   text hash     07cab54ac650dfe3
#   render with   attnforge render specs/causal.yaml
"""Causal attention with grouped heads.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
