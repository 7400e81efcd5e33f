# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/transfusion.yaml
#   content hash  cf20407faa7ee630
#   text hash     2a52c85a92337961
#   render with   attnforge render specs/transfusion.yaml
"""Causal attention in which the patches of one image see each other.

After Transfusion (2024), arXiv:2408.11039.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
