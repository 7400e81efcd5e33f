# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_encoder.yaml
#   content hash  9a14995a237826fb
#   text hash     36fcce195a7b1654
#   render with   attnforge render specs/t5_encoder.yaml
"""Attention with T5's learned biases for distances in both directions.

After T5 (Google, 2019), arXiv:1910.10683 (called with scale=1).
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
