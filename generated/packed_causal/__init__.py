# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_causal.yaml
#   content hash  9aff81f850a08440
#   text hash     59cfefa892f92671
#   render with   attnforge render specs/packed_causal.yaml
"""Causal attention for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
