# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/longformer.yaml
#   content hash  9d3447580cfd1d67
#   text hash     b55d51654c03b1e2
#   render with   attnforge render specs/longformer.yaml
"""A window of 256 keys to each side, and 16 global tokens.

After Longformer (2020), arXiv:2004.05150.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
