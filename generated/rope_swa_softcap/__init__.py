# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_swa_softcap.yaml
#   content hash  e25c6dd10447d740
#   text hash     cb4a1218c4e42b69
#   render with   attnforge render specs/rope_swa_softcap.yaml
"""Causal attention to the 1024 most recent keys with rotary embedding and capped scores.

After Gemma 2 (Google, 2024), arXiv:2408.00118.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
