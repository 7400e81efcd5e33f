# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gemma2_global.yaml
#   content hash  d9cb5fb36c75f83f
#   text hash     9f42c763dd43aaea
#   render with   attnforge render specs/gemma2_global.yaml
"""The global layers of Gemma 2, with capped scores.

After Gemma 2 (Google, 2024), arXiv:2408.00118.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
