# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_gqa.yaml
#   content hash  4fe5686c017494cf
#   text hash     b45db1547eba02fb
#   render with   attnforge render specs/rope_gqa.yaml
"""Causal attention with rotary embedding and grouped heads.

After RoFormer (2021), arXiv:2104.09864; GQA (2023), arXiv:2305.13245.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
