# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_swa_softcap.yaml
#   content hash  4948a68115799464
#   text hash     b91a70462e2a1a22
#   render with   attnforge render specs/rope_swa_softcap.yaml
"""Causal attention to the 1024 most recent keys with rotary embedding and capped scores.

After Gemma 2 (Google, 2024), arXiv:2408.00118.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
