# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/bigbird.yaml
#   content hash  184add5faae80b80
#   text hash     5fccb44c689d78ba
#   render with   attnforge render specs/bigbird.yaml
"""A window of three blocks, two global blocks, and random blocks that a mask gives.

After Big Bird (2020), arXiv:2007.14062.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
