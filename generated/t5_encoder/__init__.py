# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_encoder.yaml
#   content hash  40428a137990c6d1
#   text hash     fa86dc8c5b53882c
#   render with   attnforge render specs/t5_encoder.yaml
"""Attention with T5's learned biases for distances in both directions.

After T5 (Google, 2019), arXiv:1910.10683 (called with scale=1).
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
