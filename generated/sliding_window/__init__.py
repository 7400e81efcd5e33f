# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sliding_window.yaml
#   content hash  d793342a692f2e70
#   text hash     c23b1f6f1d3c47b3
#   render with   attnforge render specs/sliding_window.yaml
"""Causal attention to the 1024 most recent keys.

After Longformer (2020), arXiv:2004.05150.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
