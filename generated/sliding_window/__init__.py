# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sliding_window.yaml
#   content hash  cc637d2cb10f3aea
#   text hash     f70b767f27b2cdcb
#   render with   attnforge render specs/sliding_window.yaml
"""Causal attention to the 1024 most recent keys."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
