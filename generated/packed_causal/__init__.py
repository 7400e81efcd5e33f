# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_causal.yaml
#   content hash  76751c3627b81cd3
#   text hash     652b8f8230152154
#   render with   attnforge render specs/packed_causal.yaml
"""Causal attention for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
