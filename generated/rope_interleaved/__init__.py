# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_interleaved.yaml
#   content hash  9b7afc6c01e54a4b
#   text hash     2bebefe2ea2a2a61
#   render with   attnforge render specs/rope_interleaved.yaml
"""Causal attention with rotary embedding of neighbouring components."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
