# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_gqa.yaml
#   content hash  d95d6795602c8dc5
#   text hash     120fb6b8f6972385
#   render with   attnforge render specs/rope_gqa.yaml
"""Causal attention with rotary embedding and grouped heads.

After RoFormer (2021), arXiv:2104.09864; GQA (2023), arXiv:2305.13245.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
