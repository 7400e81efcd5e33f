# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_interleaved.yaml
#   content hash  93715980132fe006
#   text hash     1554a1c2cb015771
#   render with   attnforge render specs/rope_interleaved.yaml
"""Causal attention with rotary embedding of neighbouring components.

After RoFormer (2021), arXiv:2104.09864, the pairs as in its equations.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
