# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/shaw.yaml
#   content hash  bbe9cb5ac0e0b076
#   text hash     497bdeedce6c4616
#   render with   attnforge render specs/shaw.yaml
"""Attention in which each query gives each distance up to 16 a score of its own; without the paper's relative values.

After Self-Attention with Relative Position Representations (2018), arXiv:1803.02155, its relative keys.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
