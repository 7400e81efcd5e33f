# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gemma2_global.yaml
#   content hash  d3ef08ddf740dac3
#   text hash     49207be7d54b6dbc
#   render with   attnforge render specs/gemma2_global.yaml
"""The global layers of Gemma 2, with capped scores.

After Gemma 2 (Google, 2024), arXiv:2408.00118.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
