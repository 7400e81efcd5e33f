# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/log_decay.yaml
#   content hash  05e5c519385bb238
#   text hash     18cfbdbbb790549c
#   render with   attnforge render specs/log_decay.yaml
"""Causal attention that forgets by a decay learned for each token and head."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
