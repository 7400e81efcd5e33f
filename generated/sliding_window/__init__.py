# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sliding_window.yaml
#   content hash  4764ac6ae3b0e501
#   text hash     6836850b35b7faa8
#   render with   attnforge render specs/sliding_window.yaml
"""Causal attention to the 1024 most recent keys."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
