# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/runtime_window.yaml
#   content hash  3d43118fccaf3ce9
#   text hash     1539cd92fe85c994
#   render with   attnforge render specs/runtime_window.yaml
"""Causal attention to the most recent keys, as many as each call says."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
