# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_log_decay.yaml
#   content hash  ee40c881ef3e9f97
#   text hash     f7959e0f8798e752
#   render with   attnforge render specs/packed_log_decay.yaml
"""Causal attention that forgets by a learned decay, for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
