# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/bigbird.yaml
#   content hash  4ce509c3bec6385b
#   text hash     167afecf4e61fc3a
#   render with   attnforge render specs/bigbird.yaml
"""A window of three blocks, two global blocks, and random blocks that a mask gives.

After Big Bird (2020), arXiv:2007.14062.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
