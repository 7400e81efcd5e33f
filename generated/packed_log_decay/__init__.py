# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_log_decay.yaml
#   content hash  3fd254098d033596
#   text hash     3ef082f68962c8ff
#   render with   attnforge render specs/packed_log_decay.yaml
"""Causal attention that forgets by a learned decay, for sequences packed into one tensor."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
