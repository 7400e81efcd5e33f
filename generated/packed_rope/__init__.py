# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_rope.yaml
#   content hash  5da8fcc0343a59a1
#   text hash     8a39d267f76abc94
#   render with   attnforge render specs/packed_rope.yaml
"""Causal attention with rotary embedding for sequences packed into one tensor.

After Llama 3 (Meta, 2024), arXiv:2407.21783.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
