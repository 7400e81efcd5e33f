# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/shaw.yaml
#   content hash  93904b9e8c3e79bd
#   text hash     82efeecea5d5b669
#   render with   attnforge render specs/shaw.yaml
"""Attention in which each query gives each distance up to 16 a score of its own; without the paper's relative values.

After Self-Attention with Relative Position Representations (2018), arXiv:1803.02155, its relative keys.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
