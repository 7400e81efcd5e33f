# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/rope.yaml
#   content hash  847c2a3fd8e2e69e
#   text hash     a2e154a63f96a2a7
#   render with   attnforge render specs/rope.yaml
"""Causal attention with rotary embedding, and as many key heads as query heads."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
