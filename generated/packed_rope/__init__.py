# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_rope.yaml
#   content hash  b3e74a5ffa93f915
#   text hash     5792cfe7043fa2d2
#   render with   attnforge render specs/packed_rope.yaml
"""Causal attention with rotary embedding for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
