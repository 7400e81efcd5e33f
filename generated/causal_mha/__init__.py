# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal_mha.yaml
#   content hash  bb8d06f9180c0e7e
#   text hash     71712bc7578490af
#   render with   attnforge render specs/causal_mha.yaml
"""Causal attention with as many key heads as query heads.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
