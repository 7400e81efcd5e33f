# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gemma2_local.yaml
#   content hash  ce6df05fa91ad521
#   text hash     19153b5c6939fe5b
#   render with   attnforge render specs/gemma2_local.yaml
"""The local layers of Gemma 2, with a window and capped scores.

After Gemma 2 (Google, 2024), arXiv:2408.00118.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
