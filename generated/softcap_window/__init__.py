# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/softcap_window.yaml
#   content hash  72059000fd1a2279
#   text hash     22b23e2b8d9e6bbe
#   render with   attnforge render specs/softcap_window.yaml
"""Causal attention with scores capped smoothly at 50, to the most recent keys that each call asks for.

After Gemma 2 (Google, 2024), arXiv:2408.00118, its layers of both kinds after their rotation.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
