# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/differential.yaml
#   content hash  42004aa88a8d4f8d
#   text hash     ae42618d8e0ddf56
#   render with   attnforge render specs/differential.yaml
"""One of the two maps of differential attention, called once for each and subtracted.

After Differential Transformer (2024), arXiv:2410.05258.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
