# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_rope.yaml
#   content hash  deb6cf9b362c073e
#   text hash     5fd035eaa89a57cb
#   render with   attnforge render specs/packed_rope.yaml
"""Causal attention with rotary embedding for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
