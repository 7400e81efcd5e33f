# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope.yaml
#   content hash  d7c40a55c5b01b48
#   text hash     a2cd442ede5d2ae9
#   render with   attnforge render specs/rope.yaml
"""Causal attention with rotary embedding, and as many key heads as query heads.

After RoFormer (2021), arXiv:2104.09864.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
