# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/swin.yaml
#   content hash  210a750ef1a32fa2
#   text hash     e66b6739f57787ba
#   render with   attnforge render specs/swin.yaml
"""Attention inside windows of 7 x 7 patches with a learned bias for each offset.

After Swin Transformer (2021), arXiv:2103.14030.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
