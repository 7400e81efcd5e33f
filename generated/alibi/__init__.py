# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/alibi.yaml
#   content hash  1c239f3a2cca82af
#   text hash     bc9f746d23e2633a
#   render with   attnforge render specs/alibi.yaml
"""Causal attention with linear biases, one slope a head."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
