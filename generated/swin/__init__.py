# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/swin.yaml
#   content hash  cda7ffa2a8438f6f
#   text hash     4d08d9452d5652bc
#   render with   attnforge render specs/swin.yaml
"""Attention inside windows of 7 x 7 patches with a learned bias for each offset.

After Swin Transformer (2021), arXiv:2103.14030.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
