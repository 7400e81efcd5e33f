# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/swin.yaml
#   content hash  d7a61b6823b1cb32
#   text hash     3713b1c3e7705434
#   render with   attnforge render specs/swin.yaml
"""Attention inside windows of 7 x 7 patches with a learned bias for each offset.

After Swin Transformer (2021), arXiv:2103.14030.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
