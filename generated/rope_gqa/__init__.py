# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_gqa.yaml
#   content hash  5854cb4d8a0c994c
#   text hash     0017edc524cd9ca4
#   render with   attnforge render specs/rope_gqa.yaml
"""Causal attention with rotary embedding and grouped heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
