# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_gqa.yaml
#   content hash  bc9133a1c15ae81b
#   text hash     dcd1181d5b62fa2b
#   render with   attnforge render specs/rope_gqa.yaml
"""Causal attention with rotary embedding and grouped heads.

After RoFormer (2021), arXiv:2104.09864; GQA (2023), arXiv:2305.13245.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
