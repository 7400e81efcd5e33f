# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/shaw.yaml
#   content hash  7956c62d1c2f81f1
#   text hash     e2999f30586f99cd
#   render with   attnforge render specs/shaw.yaml
"""Attention in which each query gives each distance up to 16 a score of its own.

After Self-Attention with Relative Position Representations (2018), arXiv:1803.02155.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
