# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_decoder.yaml
#   content hash  3f38e9f9c4162739
#   text hash     0bb2e864508cf1ba
#   render with   attnforge render specs/t5_decoder.yaml
"""Causal attention with T5's learned biases for distances.

After T5 (Google, 2019), arXiv:1910.10683 (called with scale=1).
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
