# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/cross.yaml
#   content hash  31d0b3de4957200a
#   text hash     3cb6611b8274c046
#   render with   attnforge render specs/cross.yaml
"""Attention from a decoder to all of an encoder's outputs.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
