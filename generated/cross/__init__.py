# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/cross.yaml
#   content hash  d9b7695e43b58249
#   text hash     496d1a9cf82058f4
#   render with   attnforge render specs/cross.yaml
"""Attention from a decoder to all of an encoder's outputs.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
