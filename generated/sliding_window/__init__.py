# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sliding_window.yaml
#   content hash  a45891a6d08f3983
#   text hash     c00e72f1e4b9e9de
#   render with   attnforge render specs/sliding_window.yaml
"""Causal attention to the 1024 most recent keys.

After Longformer (2020), arXiv:2004.05150.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
