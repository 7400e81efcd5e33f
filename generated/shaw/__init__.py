# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/shaw.yaml
#   content hash  c1a9e6bd0d04a897
#   text hash     faf861bc0e363e7d
#   render with   attnforge render specs/shaw.yaml
"""Attention in which each query gives each distance up to 16 a score of its own.

After Self-Attention with Relative Position Representations (2018), arXiv:1803.02155.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
