# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama3.yaml
#   content hash  6dcc0ef938ead60d
#   text hash     c32598b0e36a390c
#   render with   attnforge render specs/llama3.yaml
"""Causal attention with rotary embedding and grouped heads, as in Llama 3.

After Llama 3 (Meta, 2024), arXiv:2407.21783.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
