# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gemma2_local.yaml
#   content hash  0dc92e4b63234d6a
#   text hash     03293791b2f88050
#   render with   attnforge render specs/gemma2_local.yaml
"""The local layers of Gemma 2, with a window and capped scores.

After Gemma 2 (Google, 2024), arXiv:2408.00118.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
