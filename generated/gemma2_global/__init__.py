# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gemma2_global.yaml
#   content hash  0b62f164b88042f6
#   text hash     78865ae9e77af700
#   render with   attnforge render specs/gemma2_global.yaml
"""The global layers of Gemma 2, with capped scores.

After Gemma 2 (Google, 2024), arXiv:2408.00118.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
