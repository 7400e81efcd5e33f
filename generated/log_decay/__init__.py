# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/log_decay.yaml
#   content hash  b7306fc07865db0e
#   text hash     48019f61388749e8
#   render with   attnforge render specs/log_decay.yaml
"""Causal attention that forgets by a decay learned for each token and head."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
