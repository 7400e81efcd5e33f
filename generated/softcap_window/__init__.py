# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/softcap_window.yaml
#   content hash  9d5bb3da9ca22392
#   text hash     04324933c3471a2e
#   render with   attnforge render specs/softcap_window.yaml
"""Causal attention with scores capped smoothly at 50, to the most recent keys that each call asks for.

After Gemma 2 (Google, 2024), arXiv:2408.00118, its layers of both kinds after their rotation.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
