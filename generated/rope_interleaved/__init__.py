# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_interleaved.yaml
#   content hash  8f0c2630a0ef71b0
#   text hash     8b117e15f7719c11
#   render with   attnforge render specs/rope_interleaved.yaml
"""Causal attention with rotary embedding of neighbouring components."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
