# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gemma2_local.yaml
#   content hash  184e48cef0c5c5e3
#   text hash     90f50eb88f2fb386
#   render with   attnforge render specs/gemma2_local.yaml
"""The local layers of Gemma 2, with a window and capped scores.

After Gemma 2 (Google, 2024), arXiv:2408.00118.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
