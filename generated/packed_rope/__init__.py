# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_rope.yaml
#   content hash  7ce69e0c010c5b2b
#   text hash     c94f6506119c6e28
#   render with   attnforge render specs/packed_rope.yaml
"""Causal attention with rotary embedding for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
