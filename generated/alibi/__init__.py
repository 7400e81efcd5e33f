# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/alibi.yaml
#   content hash  e48bd86050f3bd89
#   text hash     54e0f359bf2720bb
#   render with   attnforge render specs/alibi.yaml
"""Causal attention with linear biases, one slope a head."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
