# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sliding_window.yaml
#   content hash  c8a417fc7c9c3743
#   text hash     174c062475094bf8
#   render with   attnforge render specs/sliding_window.yaml
"""Causal attention to the 1024 most recent keys."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
