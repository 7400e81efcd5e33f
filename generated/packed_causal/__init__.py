# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_causal.yaml
#   content hash  b88baf5baea81a9c
#   text hash     bc81849210facf36
#   render with   attnforge render specs/packed_causal.yaml
"""Causal attention for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
