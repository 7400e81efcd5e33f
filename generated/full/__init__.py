# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/full.yaml
#   content hash  51ba22ecd4ca7941
#   text hash     63795abac3960928
#   render with   attnforge render specs/full.yaml
"""Softmax attention without a mask.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
