# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/dilated_window.yaml
#   content hash  c638a4a67f2aa1e0
#   text hash     e2dcdce1f8b7af31
#   render with   attnforge render specs/dilated_window.yaml
"""Causal attention to every fourth of the 512 most recent keys.

After Longformer (2020), arXiv:2004.05150, section 3.1.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
