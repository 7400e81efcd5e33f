# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_rope.yaml
#   content hash  b5a4332c3e99ed1b
#   text hash     5e58283a285d0bcb
#   render with   attnforge render specs/packed_rope.yaml
"""Causal attention with rotary embedding for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
