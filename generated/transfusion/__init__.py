# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/transfusion.yaml
#   content hash  cbd088e2b6be8b21
#   text hash     77901325ac3d6346
#   render with   attnforge render specs/transfusion.yaml
"""Causal attention in which the patches of one image see each other.

After Transfusion (2024), arXiv:2408.11039.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
