# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_swa_softcap.yaml
#   content hash  10e40e3a5e892af9
#   text hash     cb7486541668c3cf
#   render with   attnforge render specs/rope_swa_softcap.yaml
"""Causal attention to the 1024 most recent keys with rotary embedding and capped scores."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
