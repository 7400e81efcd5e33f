# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/differential.yaml
#   content hash  f149b9775e4b7791
#   text hash     688dceaf8905a089
#   render with   attnforge render specs/differential.yaml
"""One of the two maps of differential attention, called once for each and subtracted.

After Differential Transformer (2024), arXiv:2410.05258.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
