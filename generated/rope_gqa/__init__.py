# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_gqa.yaml
#   content hash  fe32cf9e0bf48609
#   text hash     aa53021ab8b5c718
#   render with   attnforge render specs/rope_gqa.yaml
"""Causal attention with rotary embedding and grouped heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
