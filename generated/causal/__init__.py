# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal.yaml
#   content hash  81bdf53b70140b85
#   text hash     a0b070d32afbdd53
#   render with   attnforge render specs/causal.yaml
"""Causal attention with grouped heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
