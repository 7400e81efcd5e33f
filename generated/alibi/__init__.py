# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/alibi.yaml
#   content hash  94443ae56eb2b17d
#   text hash     ceea87ff76c753b1
#   render with   attnforge render specs/alibi.yaml
"""Causal attention with linear biases, one slope a head."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
