# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/bigbird.yaml
#   content hash  971372f13b70191f
#   text hash     62e434a984f2a09b
#   render with   attnforge render specs/bigbird.yaml
"""A window of three blocks, two global blocks, and random blocks that a mask gives.

After Big Bird (2020), arXiv:2007.14062.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
