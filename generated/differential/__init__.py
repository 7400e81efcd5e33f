# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/differential.yaml
#   content hash  867a4a6b91e478ae
#   text hash     9867e9dba43912d7
#   render with   attnforge render specs/differential.yaml
"""One of the two maps of differential attention, called once for each and subtracted.

After Differential Transformer (2024), arXiv:2410.05258.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
