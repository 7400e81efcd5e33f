# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/transfusion.yaml
#   content hash  037b17499b644f99
#   text hash     36bc63873349aa26
#   render with   attnforge render specs/transfusion.yaml
"""Causal attention in which the patches of one image see each other.

After Transfusion (2024), arXiv:2408.11039.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
