# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_gqa.yaml
#   content hash  87f87934f6d6502e
#   text hash     9262da7417dd5ab9
#   render with   attnforge render specs/rope_gqa.yaml
"""Causal attention with rotary embedding and grouped heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
