# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal.yaml
#   content hash  257b5e4f9e9ccc60
#   text hash     10abbb918bcf84f9
#   render with   attnforge render specs/causal.yaml
"""Causal attention with grouped heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
