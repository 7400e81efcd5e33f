# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/shaw.yaml
#   content hash  10ca12ba986a53e9
#   text hash     93aa0be40f98c6b9
#   render with   attnforge render specs/shaw.yaml
"""Attention in which each query gives each distance up to 16 a score of its own; without the paper's relative values.

After Self-Attention with Relative Position Representations (2018), arXiv:1803.02155, its relative keys.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
