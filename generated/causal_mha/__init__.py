# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal_mha.yaml
#   content hash  471949150b23b503
#   text hash     cc85efc7c92d62e3
#   render with   attnforge render specs/causal_mha.yaml
"""Causal attention with as many key heads as query heads.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
