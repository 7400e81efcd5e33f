# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/pair_bias.yaml
#   content hash  4dfb06d924e62ce1
#   text hash     06868a93e56682a8
#   render with   attnforge render specs/pair_bias.yaml
"""Attention with a learned bias for each pair of positions.

After AlphaFold 2 (2021), doi:10.1038/s41586-021-03819-2, without its gate.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
