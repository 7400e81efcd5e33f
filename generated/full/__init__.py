# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/full.yaml
#   content hash  3be01b9762cabcfc
#   text hash     1007b6258973d378
#   render with   attnforge render specs/full.yaml
"""Softmax attention without a mask.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
