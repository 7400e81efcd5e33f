# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/swin.yaml
#   content hash  52c03e4b4d966be8
#   text hash     1c47eec7d331f9dc
#   render with   attnforge render specs/swin.yaml
"""Attention inside windows of 7 x 7 patches with a learned bias for each offset.

After Swin Transformer (2021), arXiv:2103.14030.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
