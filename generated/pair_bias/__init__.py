# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/pair_bias.yaml
#   content hash  4d296e3aafe35911
#   text hash     21354cd34ff325e5
#   render with   attnforge render specs/pair_bias.yaml
"""Attention with a learned bias for each pair of positions.

After AlphaFold 2 (2021), doi:10.1038/s41586-021-03819-2, without its gate.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
