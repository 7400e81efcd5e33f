# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/transfusion.yaml
#   content hash  99ebae6a92b41d8c
#   text hash     b7168a733cf65eb7
#   render with   attnforge render specs/transfusion.yaml
"""Causal attention in which the patches of one image see each other.

After Transfusion (2024), arXiv:2408.11039.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
