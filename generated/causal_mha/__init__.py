# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal_mha.yaml
#   content hash  b50e0fcee6ffe9ff
#   text hash     5df537f6efeb02f1
#   render with   attnforge render specs/causal_mha.yaml
"""Causal attention with as many key heads as query heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
