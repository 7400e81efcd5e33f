# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope.yaml
#   content hash  e474a65227761130
#   text hash     71b3a63b7eedc391
#   render with   attnforge render specs/rope.yaml
"""Causal attention with rotary embedding, and as many key heads as query heads.

After RoFormer (2021), arXiv:2104.09864.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
