# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/softcap.yaml
#   content hash  8d12a307ddb9dbdf
#   text hash     3c078d351b8fa8ec
#   render with   attnforge render specs/softcap.yaml
"""Causal attention with scores capped smoothly at 30.

After Grok-1 (xAI, 2024), which caps at 30.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
