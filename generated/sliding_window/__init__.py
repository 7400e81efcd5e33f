# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sliding_window.yaml
#   content hash  b76717b702541077
#   text hash     9caab8cf023f27ef
#   render with   attnforge render specs/sliding_window.yaml
"""Causal attention to the 1024 most recent keys."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
