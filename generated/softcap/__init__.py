# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/softcap.yaml
#   content hash  040bf4e2ce8489cf
#   text hash     96eee240fcf15323
#   render with   attnforge render specs/softcap.yaml
"""Causal attention with scores capped smoothly at 30."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
