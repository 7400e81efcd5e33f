# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/log_decay.yaml
#   content hash  4eba6e9cb8ea5acb
#   text hash     2a6b75146a3502d1
#   render with   attnforge render specs/log_decay.yaml
"""Causal attention that forgets by a decay learned for each token and head."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
