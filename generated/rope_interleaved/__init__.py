# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_interleaved.yaml
#   content hash  2c7dcb3f7a3a3a34
#   text hash     13a680ad5fa15cd3
#   render with   attnforge render specs/rope_interleaved.yaml
"""Causal attention with rotary embedding of neighbouring components.

After RoFormer (2021), arXiv:2104.09864, the pairs as in its equations.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
