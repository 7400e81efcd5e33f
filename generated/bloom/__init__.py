# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/bloom.yaml
#   content hash  14fc5ee85970256a
#   text hash     9212a154260df596
#   render with   attnforge render specs/bloom.yaml
"""Causal attention with linear biases and as many key heads as query heads.

After BLOOM (BigScience, 2022), arXiv:2211.05100.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
