# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gemma2_global.yaml
#   content hash  bb44026f5609529c
#   text hash     c4ca523133a6662a
#   render with   attnforge render specs/gemma2_global.yaml
"""The global layers of Gemma 2, with capped scores.

After Gemma 2 (Google, 2024), arXiv:2408.00118.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
