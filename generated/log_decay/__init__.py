# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/log_decay.yaml
#   content hash  9bba93bcc490b938
#   text hash     3d10909d8d79b991
#   render with   attnforge render specs/log_decay.yaml
"""Causal attention that forgets by a decay learned for each token and head."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
