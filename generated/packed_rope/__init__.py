# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_rope.yaml
#   content hash  1cf6244cc1d77487
#   text hash     b6011ac2156c1e57
#   render with   attnforge render specs/packed_rope.yaml
"""Causal attention with rotary embedding for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
