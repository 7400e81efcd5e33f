# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/shaw.yaml
#   content hash  5c282fdb74ef2bfa
#   text hash     a6f2d800ca48e791
#   render with   attnforge render specs/shaw.yaml
"""Attention in which each query gives each distance up to 16 a score of its own; without the paper's relative values.

After Self-Attention with Relative Position Representations (2018), arXiv:1803.02155, its relative keys.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
