# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/full.yaml
#   content hash  9f346f92c3969c08
#   text hash     5f29804a285e288b
#   render with   attnforge render specs/full.yaml
"""Softmax attention without a mask.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
