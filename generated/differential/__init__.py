# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/differential.yaml
#   content hash  57d1e9378ae553b3
#   text hash     7e24cc5f0db3a2dc
#   render with   attnforge render specs/differential.yaml
"""One of the two maps of differential attention, called once for each and subtracted.

After Differential Transformer (2024), arXiv:2410.05258.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
