# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_interleaved.yaml
#   content hash  f05bcde855a3819f
#   text hash     4be5d21e88f0c7d4
#   render with   attnforge render specs/rope_interleaved.yaml
"""Causal attention with rotary embedding of neighbouring components.

After RoFormer (2021), arXiv:2104.09864, the pairs as in its equations.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
