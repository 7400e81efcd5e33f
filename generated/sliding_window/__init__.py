# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sliding_window.yaml
#   content hash  9caaf77236f02b52
#   text hash     a3f624251c6e69dd
#   render with   attnforge render specs/sliding_window.yaml
"""Causal attention to the 1024 most recent keys.

After Longformer (2020), arXiv:2004.05150.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
