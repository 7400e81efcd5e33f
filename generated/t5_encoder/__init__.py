# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_encoder.yaml
#   content hash  b81eb80382ca0acb
#   text hash     ec35e952e96f8fe1
#   render with   attnforge render specs/t5_encoder.yaml
"""Attention with T5's learned biases for distances in both directions.

After T5 (Google, 2019), arXiv:1910.10683 (called with scale=1).
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
