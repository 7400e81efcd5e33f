# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_swa_softcap.yaml
#   content hash  c0d3cb59e8eb2194
#   text hash     2fc56f990c4c0ab3
#   render with   attnforge render specs/rope_swa_softcap.yaml
"""Causal attention to the 1024 most recent keys with rotary embedding and capped scores."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
