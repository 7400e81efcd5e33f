# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal.yaml
#   content hash  733fa8303b7ab8bc
#   text hash     572e710cf24753f2
#   render with   attnforge render specs/causal.yaml
"""Causal attention with grouped heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
