# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/transfusion.yaml
#   content hash  2a5294b43b8062a6
#   text hash     32bcb2d2d80dda02
#   render with   attnforge render specs/transfusion.yaml
"""Causal attention in which the patches of one image see each other.

After Transfusion (2024), arXiv:2408.11039.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
