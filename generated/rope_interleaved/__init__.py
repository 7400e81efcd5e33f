# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_interleaved.yaml
#   content hash  6a32152b9d42f601
#   text hash     b0f30b6e76a755e8
#   render with   attnforge render specs/rope_interleaved.yaml
"""Causal attention with rotary embedding of neighbouring components.

After RoFormer (2021), arXiv:2104.09864, the pairs as in its equations.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
