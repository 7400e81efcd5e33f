# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/shaw.yaml
#   content hash  708b2417c73de103
#   text hash     8aee8e71638c1f18
#   render with   attnforge render specs/shaw.yaml
"""Attention in which each query gives each distance up to 16 a score of its own.

After Self-Attention with Relative Position Representations (2018), arXiv:1803.02155.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
