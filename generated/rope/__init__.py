# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope.yaml
#   content hash  4a7b0c22b7ec15f2
#   text hash     f02bbefa960c5edd
#   render with   attnforge render specs/rope.yaml
"""Causal attention with rotary embedding, and as many key heads as query heads.

After RoFormer (2021), arXiv:2104.09864.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
