# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/cross.yaml
#   content hash  cf31007835fae1fb
#   text hash     0496b937e4ecf164
#   render with   attnforge render specs/cross.yaml
"""Attention from a decoder to all of an encoder's outputs.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
