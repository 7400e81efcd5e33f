# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/full.yaml
#   content hash  da7a45014f862e42
#   text hash     856e1a1c2f107450
#   render with   attnforge render specs/full.yaml
"""Softmax attention without a mask.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
