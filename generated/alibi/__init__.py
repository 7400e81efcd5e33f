# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/alibi.yaml
#   content hash  311fb7434396cd7b
#   text hash     c0135108bf177626
#   render with   attnforge render specs/alibi.yaml
"""Causal attention with linear biases, one slope a head."""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
