# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_interleaved.yaml
#   content hash  118e1e5dada585c9
#   text hash     96d4a89c6870e077
#   render with   attnforge render specs/rope_interleaved.yaml
"""Causal attention with rotary embedding of neighbouring components."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
