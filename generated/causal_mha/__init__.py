# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal_mha.yaml
#   content hash  a0e491824032c8d3
#   text hash     0fedb2b76412a9b5
#   render with   attnforge render specs/causal_mha.yaml
"""Causal attention with as many key heads as query heads.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
