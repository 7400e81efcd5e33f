# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama3.yaml
#   content hash  62b548ea5df5be97
#   text hash     cbe654aea47aafbf
#   render with   attnforge render specs/llama3.yaml
"""Causal attention with rotary embedding and grouped heads, as in Llama 3.

After Llama 3 (Meta, 2024), arXiv:2407.21783.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
