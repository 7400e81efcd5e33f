# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/swin.yaml
#   content hash  52762745c8cbac0b
#   text hash     af0496332d375ea7
#   render with   attnforge render specs/swin.yaml
"""Attention inside windows of 7 x 7 patches with a learned bias for each offset.

After Swin Transformer (2021), arXiv:2103.14030.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
