# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/softcap.yaml
#   content hash  cfb1447e6dc3d9f4
#   text hash     8b89b024f5df1c60
#   render with   attnforge render specs/softcap.yaml
"""Causal attention with scores capped smoothly at 30."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
