# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_interleaved.yaml
#   content hash  1c9351a532f9d50a
#   text hash     c1773f19a138f675
#   render with   attnforge render specs/rope_interleaved.yaml
"""Causal attention with rotary embedding of neighbouring components.

After RoFormer (2021), arXiv:2104.09864, the pairs as in its equations.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
