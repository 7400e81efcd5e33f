# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_gqa.yaml
#   content hash  a08d478580c451fb
#   text hash     2c9af0e7282905ed
#   render with   attnforge render specs/rope_gqa.yaml
"""Causal attention with rotary embedding and grouped heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
