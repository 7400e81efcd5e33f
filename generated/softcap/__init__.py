# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/softcap.yaml
#   content hash  c7a31dfb900f615e
#   text hash     0482c81f498d6a75
#   render with   attnforge render specs/softcap.yaml
"""Causal attention with scores capped smoothly at 30.

After Grok-1 (xAI, 2024), which caps at 30.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
