# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_gqa.yaml
#   content hash  e7a8f3b9cce45730
#   text hash     eff771287d25b935
#   render with   attnforge render specs/rope_gqa.yaml
"""Causal attention with rotary embedding and grouped heads.

After RoFormer (2021), arXiv:2104.09864; GQA (2023), arXiv:2305.13245.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
