# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/dilated_window.yaml
#   content hash  9ebc78e829a7e640
#   text hash     f31888a73686d1c9
#   render with   attnforge render specs/dilated_window.yaml
"""Causal attention to every fourth of the 512 most recent keys.

After Longformer (2020), arXiv:2004.05150, section 3.1.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
