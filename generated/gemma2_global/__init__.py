# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gemma2_global.yaml
#   content hash  5748c259109a7b0d
#   text hash     ae0e7cfdad2ed69b
#   render with   attnforge render specs/gemma2_global.yaml
"""The global layers of Gemma 2, with capped scores.

After Gemma 2 (Google, 2024), arXiv:2408.00118.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
