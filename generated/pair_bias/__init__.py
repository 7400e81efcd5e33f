# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/pair_bias.yaml
#   content hash  82c09104f0fea6a7
#   text hash     aa90fcf2f528e1ef
#   render with   attnforge render specs/pair_bias.yaml
"""Attention with a learned bias for each pair of positions.

After AlphaFold 2 (2021), doi:10.1038/s41586-021-03819-2, without its gate.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
