# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/pair_bias.yaml
#   content hash  66f1c195feeab1f1
#   text hash     871c4b703c17e5b1
#   render with   attnforge render specs/pair_bias.yaml
"""Attention with a learned bias for each pair of positions.

After AlphaFold 2 (2021), doi:10.1038/s41586-021-03819-2, without its gate.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
