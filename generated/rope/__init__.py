# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope.yaml
#   content hash  1d388beee290df83
#   text hash     5b323091dd7f0fc3
#   render with   attnforge render specs/rope.yaml
"""Causal attention with rotary embedding, and as many key heads as query heads.

After RoFormer (2021), arXiv:2104.09864.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
