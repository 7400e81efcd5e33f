# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal.yaml
#   content hash  6064252c7e2026d3
#   text hash     e9fedc561e3325b6
#   render with   attnforge render specs/causal.yaml
"""Causal attention with grouped heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
