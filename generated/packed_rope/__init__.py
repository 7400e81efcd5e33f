# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_rope.yaml
#   content hash  42564da096e7d26b
#   text hash     b0333bbf37a844bf
#   render with   attnforge render specs/packed_rope.yaml
"""Causal attention with rotary embedding for sequences packed into one tensor.

After Llama 3 (Meta, 2024), arXiv:2407.21783.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
