# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sliding_window.yaml
#   content hash  9cd741d33c62512b
#   text hash     1deafd9633671405
#   render with   attnforge render specs/sliding_window.yaml
"""Causal attention to the 1024 most recent keys."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
