# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope_swa_softcap.yaml
#   content hash  5af6b40ffc4ee8e4
#   text hash     058438e9754c5adb
#   render with   attnforge render specs/rope_swa_softcap.yaml
"""Causal attention to the 1024 most recent keys with rotary embedding and capped scores."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
