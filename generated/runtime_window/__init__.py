# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/runtime_window.yaml
#   content hash  6ac43790ec65c0ff
#   text hash     c7a0366891d25777
#   render with   attnforge render specs/runtime_window.yaml
"""Causal attention to the most recent keys, as many as each call says."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
