# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/longformer.yaml
#   content hash  33219c8e6ed1bdb8
#   text hash     ede5557037f2facf
#   render with   attnforge render specs/longformer.yaml
"""A window of 256 keys to each side, and 16 global tokens.

After Longformer (2020), arXiv:2004.05150.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
