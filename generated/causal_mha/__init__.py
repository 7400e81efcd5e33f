# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal_mha.yaml
#   content hash  512d45ce1029dcd5
#   text hash     6d02d5a7b81edb84
#   render with   attnforge render specs/causal_mha.yaml
"""Causal attention with as many key heads as query heads.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
