# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/tree_decoding.yaml
#   content hash  6108ef11fd657e29
#   text hash     cc940bb577ae52c2
#   render with   attnforge render specs/tree_decoding.yaml
"""A tree of drafted tokens verified at once, each of which sees its ancestors and all older keys.

After SpecInfer (2023), arXiv:2305.09781.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
