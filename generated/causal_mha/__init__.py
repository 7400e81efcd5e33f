# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal_mha.yaml
#   content hash  19a2e37d6acd91de
#   text hash     478e05f5644fa2da
#   render with   attnforge render specs/causal_mha.yaml
"""Causal attention with as many key heads as query heads.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
