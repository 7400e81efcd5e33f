# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_gqa.yaml
#   content hash  4a05d12781b69d7d
#   text hash     1fe71c8b8fb36276
#   render with   attnforge render specs/rope_gqa.yaml
"""Causal attention with rotary embedding and grouped heads.

After RoFormer (2021), arXiv:2104.09864; GQA (2023), arXiv:2305.13245.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
