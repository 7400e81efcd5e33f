# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal.yaml
#   content hash  76dbd3ebe7fa80f2
#   text hash     6f6facee7476f0b6
#   render with   attnforge render specs/causal.yaml
"""Causal attention with grouped heads.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
