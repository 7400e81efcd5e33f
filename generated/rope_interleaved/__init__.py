# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_interleaved.yaml
#   content hash  e1ee56426783f6ab
#   text hash     7927d9bbae917333
#   render with   attnforge render specs/rope_interleaved.yaml
"""Causal attention with rotary embedding of neighbouring components."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
