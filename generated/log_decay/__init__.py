# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/log_decay.yaml
#   content hash  0cf4a1bca267f3ba
#   text hash     5ea6607935171145
#   render with   attnforge render specs/log_decay.yaml
"""Causal attention that forgets by a decay learned for each token and head."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
