# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/neighbourhood_2d.yaml
#   content hash  5540e4f4fd2214cd
#   text hash     ce8e29c011e34372
#   render with   attnforge render specs/neighbourhood_2d.yaml
"""Cells of an image of 32 columns see a square of 7 rows and columns, moved inwards at the borders.

After Neighborhood Attention Transformer (2022), arXiv:2204.07143.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
