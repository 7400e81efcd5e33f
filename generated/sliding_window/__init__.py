# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sliding_window.yaml
#   content hash  c0d7216a35ab4bc9
#   text hash     3235bc171b476e3f
#   render with   attnforge render specs/sliding_window.yaml
"""Causal attention to the 1024 most recent keys.

After Longformer (2020), arXiv:2004.05150.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
