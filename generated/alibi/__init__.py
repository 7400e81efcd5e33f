# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/alibi.yaml
#   content hash  c7c6bbcfdd9719a4
#   text hash     5cd05682930bfa0b
#   render with   attnforge render specs/alibi.yaml
"""Causal attention with linear biases, one slope a head."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
