# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/shaw.yaml
#   content hash  b083357e3e78e2f4
#   text hash     d3eb5c2dd516bfe0
#   render with   attnforge render specs/shaw.yaml
"""Attention in which each query gives each distance up to 16 a score of its own.

After Self-Attention with Relative Position Representations (2018), arXiv:1803.02155.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
