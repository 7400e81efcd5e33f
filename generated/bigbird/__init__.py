# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/bigbird.yaml
#   content hash  2e2904486a6f68ff
#   text hash     415f365db28d2dd9
#   render with   attnforge render specs/bigbird.yaml
"""A window of three blocks, two global blocks, and random blocks that a mask gives.

After Big Bird (2020), arXiv:2007.14062.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
