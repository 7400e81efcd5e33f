# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal.yaml
#   content hash  f09a32a678bae41d
#   text hash     f7bf8a4b0dd2248d
#   render with   attnforge render specs/causal.yaml
"""Causal attention with grouped heads.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
