# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama3.yaml
#   content hash  08cee9919ce5b049
#   text hash     69894095e2d3379f
#   render with   attnforge render specs/llama3.yaml
"""Causal attention with rotary embedding and grouped heads, as in Llama 3.

After Llama 3 (Meta, 2024), arXiv:2407.21783.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
