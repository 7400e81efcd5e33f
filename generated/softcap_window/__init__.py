# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/softcap_window.yaml
#   content hash  9be36742b6b322d5
#   text hash     ed5a146e2ad08f9a
#   render with   attnforge render specs/softcap_window.yaml
"""Causal attention with scores capped smoothly at 50, to the most recent keys that each call asks for.

After Gemma 2 (Google, 2024), arXiv:2408.00118, its layers of both kinds after their rotation.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
