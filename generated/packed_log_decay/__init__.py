# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_log_decay.yaml
#   content hash  4c790c9c6aceb31c
#   text hash     e9bdfbf28e349d8d
#   render with   attnforge render specs/packed_log_decay.yaml
"""Causal attention that forgets by a learned decay, for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
