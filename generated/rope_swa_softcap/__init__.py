# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_swa_softcap.yaml
#   content hash  f7caaa11f392cc0d
#   text hash     e1452c66f8cb14c3
#   render with   attnforge render specs/rope_swa_softcap.yaml
"""Causal attention to the 1024 most recent keys with rotary embedding and capped scores."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
