# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/shaw.yaml
#   content hash  7c2e8ed4a128c77b
#   text hash     20653eff54f3c7b3
#   render with   attnforge render specs/shaw.yaml
"""Attention in which each query gives each distance up to 16 a score of its own; without the paper's relative values.

After Self-Attention with Relative Position Representations (2018), arXiv:1803.02155, its relative keys.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
