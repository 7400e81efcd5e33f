# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/softcap.yaml
#   content hash  c0e2b54699191951
#   text hash     e45e7d5768bc1136
#   render with   attnforge render specs/softcap.yaml
"""Causal attention with scores capped smoothly at 30.

After Grok-1 (xAI, 2024), which caps at 30.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
