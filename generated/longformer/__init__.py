# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/longformer.yaml
#   content hash  e16b74f87d260207
#   text hash     a92ac0f7d43e5223
#   render with   attnforge render specs/longformer.yaml
"""A window of 256 keys to each side, and 16 global tokens.

After Longformer (2020), arXiv:2004.05150.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
