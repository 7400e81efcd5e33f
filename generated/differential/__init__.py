# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/differential.yaml
#   content hash  ffa061a8953d6e05
#   text hash     a151c4141a017fb5
#   render with   attnforge render specs/differential.yaml
"""One of the two maps of differential attention, called once for each and subtracted.

After Differential Transformer (2024), arXiv:2410.05258.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
