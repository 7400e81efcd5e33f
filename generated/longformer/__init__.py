# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/longformer.yaml
#   content hash  190d8f8a943445dd
#   text hash     a8c7e7276f71eca2
#   render with   attnforge render specs/longformer.yaml
"""A window of 256 keys to each side, and 16 global tokens.

After Longformer (2020), arXiv:2004.05150.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
