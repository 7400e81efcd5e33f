# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_causal.yaml
#   content hash  3d0328b022c4c75f
#   text hash     d18a05ec9315db6b
#   render with   attnforge render specs/packed_causal.yaml
"""Causal attention for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
