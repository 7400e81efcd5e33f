# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/bloom.yaml
#   content hash  2d2c08a03d9c0a73
#   text hash     884b11b8229c888f
#   render with   attnforge render specs/bloom.yaml
"""Causal attention with linear biases and as many key heads as query heads.

After BLOOM (BigScience, 2022), arXiv:2211.05100.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
