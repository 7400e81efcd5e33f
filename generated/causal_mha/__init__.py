# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal_mha.yaml
#   content hash  04caede43d69838b
#   text hash     869abf6ae425242a
#   render with   attnforge render specs/causal_mha.yaml
"""Causal attention with as many key heads as query heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
