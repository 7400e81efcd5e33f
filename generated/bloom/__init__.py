# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/bloom.yaml
#   content hash  6961cf9034b0ddbb
#   text hash     dab985441b9652a8
#   render with   attnforge render specs/bloom.yaml
"""Causal attention with linear biases and as many key heads as query heads.

After BLOOM (BigScience, 2022), arXiv:2211.05100.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
