# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/bigbird.yaml
#   content hash  5c44163d21f2edbb
#   text hash     d6d279f1ae027bec
#   render with   attnforge render specs/bigbird.yaml
"""A window of three blocks, two global blocks, and random blocks that a mask gives.

After Big Bird (2020), arXiv:2007.14062.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
