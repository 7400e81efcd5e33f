# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/dilated_window.yaml
#   content hash  db838bfa8b7de2f8
#   text hash     f9af3d7df8c3a3d0
#   render with   attnforge render specs/dilated_window.yaml
"""Causal attention to every fourth of the 512 most recent keys.

After Longformer (2020), arXiv:2004.05150, section 3.1.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
