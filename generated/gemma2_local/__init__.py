# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gemma2_local.yaml
#   content hash  d09fb54299c42a70
#   text hash     1e02497b99f04a59
#   render with   attnforge render specs/gemma2_local.yaml
"""The local layers of Gemma 2, with a window and capped scores.

After Gemma 2 (Google, 2024), arXiv:2408.00118.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
