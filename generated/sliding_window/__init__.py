# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sliding_window.yaml
#   content hash  bd25ce0a0db1a2c7
#   text hash     7b8a6627b84de741
#   render with   attnforge render specs/sliding_window.yaml
"""Causal attention to the 1024 most recent keys.

After Longformer (2020), arXiv:2004.05150.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
