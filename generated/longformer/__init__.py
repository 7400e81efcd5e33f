# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/longformer.yaml
#   content hash  bad9c1350f844fbd
#   text hash     64a81d9d41b7c9f1
#   render with   attnforge render specs/longformer.yaml
"""A window of 256 keys to each side, and 16 global tokens.

After Longformer (2020), arXiv:2004.05150.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
