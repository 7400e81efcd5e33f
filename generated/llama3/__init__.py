# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama3.yaml
#   content hash  5af5a5e5eaf1f1d4
#   text hash     c5029579a977a1ce
#   render with   attnforge render specs/llama3.yaml
"""Causal attention with rotary embedding and grouped heads, as in Llama 3.

After Llama 3 (Meta, 2024), arXiv:2407.21783.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
