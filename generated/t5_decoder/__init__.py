# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_decoder.yaml
#   content hash  f4a1431a9f6e1e7a
#   text hash     059f2d9edf1dac00
#   render with   attnforge render specs/t5_decoder.yaml
"""Causal attention with T5's learned biases for distances.

After T5 (Google, 2019), arXiv:1910.10683 (called with scale=1).
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
