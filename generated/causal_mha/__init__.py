# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal_mha.yaml
#   content hash  125083c3d30dc863
#   text hash     bbd704b4a7940d42
#   render with   attnforge render specs/causal_mha.yaml
"""Causal attention with as many key heads as query heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
