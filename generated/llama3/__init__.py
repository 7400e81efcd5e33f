# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama3.yaml
#   content hash  151bbda200d61b5d
#   text hash     8d35d7355754a663
#   render with   attnforge render specs/llama3.yaml
"""Causal attention with rotary embedding and grouped heads, as in Llama 3.

After Llama 3 (Meta, 2024), arXiv:2407.21783.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
