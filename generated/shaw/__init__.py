# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/shaw.yaml
#   content hash  e0bd389999de1083
#   text hash     70d71a576835a30c
#   render with   attnforge render specs/shaw.yaml
"""Attention in which each query gives each distance up to 16 a score of its own.

After Self-Attention with Relative Position Representations (2018), arXiv:1803.02155.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
