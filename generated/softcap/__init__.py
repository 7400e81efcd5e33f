# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/softcap.yaml
#   content hash  2f4ef9bdeb51929b
#   text hash     cf79b0176f0184ff
#   render with   attnforge render specs/softcap.yaml
"""Causal attention with scores capped smoothly at 30."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
