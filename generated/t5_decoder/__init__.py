# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_decoder.yaml
#   content hash  291f474541630f60
#   text hash     9eb36bf4b9672e1a
#   render with   attnforge render specs/t5_decoder.yaml
"""Causal attention with T5's learned biases for distances.

After T5 (Google, 2019), arXiv:1910.10683 (called with scale=1).
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
