# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_decoder.yaml
#   content hash  1e550c9b53e68ec0
#   text hash     71efd927e6628f47
#   render with   attnforge render specs/t5_decoder.yaml
"""Causal attention with T5's learned biases for distances.

After T5 (Google, 2019), arXiv:1910.10683 (called with scale=1).
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
