# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/runtime_window.yaml
#   content hash  f2ef45a142a19896
#   text hash     9f3bf767317b4cde
#   render with   attnforge render specs/runtime_window.yaml
"""Causal attention to the most recent keys, as many as each call says."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
