# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gemma2_local.yaml
#   content hash  5abddddb5a658ba0
#   text hash     389d6d7896a02bb5
#   render with   attnforge render specs/gemma2_local.yaml
"""The local layers of Gemma 2, with a window and capped scores.

After Gemma 2 (Google, 2024), arXiv:2408.00118.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
