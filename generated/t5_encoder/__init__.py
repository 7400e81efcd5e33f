# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_encoder.yaml
#   content hash  a1ab9bb0b5e35f4c
#   text hash     bddc2ab483a04b75
#   render with   attnforge render specs/t5_encoder.yaml
"""Attention with T5's learned biases for distances in both directions.

After T5 (Google, 2019), arXiv:1910.10683 (called with scale=1).
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
