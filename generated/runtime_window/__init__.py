# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/runtime_window.yaml
#   content hash  4c296e69f6354238
#   text hash     6c0a35c02182999b
#   render with   attnforge render specs/runtime_window.yaml
"""Causal attention to the most recent keys, as many as each call says."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
