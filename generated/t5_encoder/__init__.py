# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_encoder.yaml
#   content hash  1eb25d6fde18413d
#   text hash     ce84215bf8bdb8b8
#   render with   attnforge render specs/t5_encoder.yaml
"""Attention with T5's learned biases for distances in both directions.

After T5 (Google, 2019), arXiv:1910.10683 (called with scale=1).
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
