# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/softcap.yaml
#   content hash  89e3dd1bacb1ded0
#   text hash     99f00f37df9ff470
#   render with   attnforge render specs/softcap.yaml
"""Causal attention with scores capped smoothly at 30."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
