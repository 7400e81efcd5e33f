# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/neighbourhood_2d.yaml
#   content hash  2014843b0df3cf71
#   text hash     7c72185c80777d64
#   render with   attnforge render specs/neighbourhood_2d.yaml
"""Cells of an image of 32 columns see those at most 3 rows and columns away.

After Neighborhood Attention Transformer (2022), arXiv:2204.07143.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
