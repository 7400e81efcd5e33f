# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal.yaml
#   content hash  5b33fb8d95307956
#   text hash     50bca08c6d7e1ba0
#   render with   attnforge render specs/causal.yaml
"""Causal attention with grouped heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
