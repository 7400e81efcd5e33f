# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/bloom.yaml
#   content hash  a3cb15552a8d7f9a
#   text hash     78f5f8cd8a904d5f
#   render with   attnforge render specs/bloom.yaml
"""Causal attention with linear biases and as many key heads as query heads.

After BLOOM (BigScience, 2022), arXiv:2211.05100.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
