# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/tree_decoding.yaml
#   content hash  50e8de309d039d28
#   text hash     001705a4672be2f9
#   render with   attnforge render specs/tree_decoding.yaml
"""A tree of drafted tokens verified at once, each of which sees its ancestors and all older keys.

After SpecInfer (2023), arXiv:2305.09781.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
