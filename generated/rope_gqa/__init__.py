# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_gqa.yaml
#   content hash  49be0a8bea68d008
#   text hash     1c88a5474c0f535d
#   render with   attnforge render specs/rope_gqa.yaml
"""Causal attention with rotary embedding and grouped heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
