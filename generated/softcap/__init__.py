# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/softcap.yaml
#   content hash  7b439e9f9d60aa7c
#   text hash     863ba12f4de9259a
#   render with   attnforge render specs/softcap.yaml
"""Causal attention with scores capped smoothly at 30.

After Grok-1 (xAI, 2024), which caps at 30.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
