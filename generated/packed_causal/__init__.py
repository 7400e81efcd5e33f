# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_causal.yaml
#   content hash  37da43eaa5988564
#   text hash     a989fb9cfeeefd1a
#   render with   attnforge render specs/packed_causal.yaml
"""Causal attention for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
