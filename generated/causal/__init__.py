# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal.yaml
#   content hash  cc068c9b043cf40e
#   text hash     713f1a559a3a30a7
#   render with   attnforge render specs/causal.yaml
"""Causal attention with grouped heads.

After Attention Is All You Need (2017), arXiv:1706.03762.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
