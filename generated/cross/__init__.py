# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/cross.yaml
#   content hash  ae9ea4da82802118
#   text hash     8b6a34bdaabf3a42
#   render with   attnforge render specs/cross.yaml
"""Attention from a decoder to all of an encoder's outputs.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
