# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/softcap.yaml
#   content hash  4a320fd7deb9ca2a
#   text hash     f0ffdc79b8d0200b
#   render with   attnforge render specs/softcap.yaml
"""Causal attention with scores capped smoothly at 30."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
