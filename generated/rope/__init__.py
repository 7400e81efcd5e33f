# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope.yaml
#   content hash  b5cd3ee33761e41e
#   text hash     88d1dc8857ad4976
#   render with   attnforge render specs/rope.yaml
"""Causal attention with rotary embedding, and as many key heads as query heads.

After RoFormer (2021), arXiv:2104.09864.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
