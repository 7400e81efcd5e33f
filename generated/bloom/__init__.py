# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/bloom.yaml
#   content hash  09348e82c8f5fff0
#   text hash     9f55fd642beafc77
#   render with   attnforge render specs/bloom.yaml
"""Causal attention with linear biases and as many key heads as query heads.

After BLOOM (BigScience, 2022), arXiv:2211.05100.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
