# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/runtime_window.yaml
#   content hash  f1308f6e8358d9df
#   text hash     465dd7fb9e3b08a9
#   render with   attnforge render specs/runtime_window.yaml
"""Causal attention to the most recent keys, as many as each call says."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
