# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal_mha.yaml
#   content hash  3b716503ea43f421
#   text hash     e7c6b6ccf0470296
#   render with   attnforge render specs/causal_mha.yaml
"""Causal attention with as many key heads as query heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
