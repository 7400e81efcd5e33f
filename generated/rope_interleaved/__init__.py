# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_interleaved.yaml
#   content hash  102d0b509480924e
#   text hash     708949ecea68051e
#   render with   attnforge render specs/rope_interleaved.yaml
"""Causal attention with rotary embedding of neighbouring components."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
