# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_decoder.yaml
#   content hash  57317ea5e6cf3574
#   text hash     6c7fef78070a198c
#   render with   attnforge render specs/t5_decoder.yaml
"""Causal attention with T5's learned biases for distances.

After T5 (Google, 2019), arXiv:1910.10683 (called with scale=1).
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
