# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/cross.yaml
#   content hash  a4b75c78c2f63ce8
#   text hash     8a574d5c4fc9be11
#   render with   attnforge render specs/cross.yaml
"""Attention from a decoder to all of an encoder's outputs.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
