# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/tree_decoding.yaml
#   content hash  a7aa617478ff344c
#   text hash     6858582fcde2bb67
#   render with   attnforge render specs/tree_decoding.yaml
"""A tree of drafted tokens verified at once, each of which sees its ancestors and all older keys.

After SpecInfer (2023), arXiv:2305.09781.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
