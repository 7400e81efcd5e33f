# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/dilated_window.yaml
#   content hash  f41aa22a8eff07b9
#   text hash     6f3ddd35e38c198f
#   render with   attnforge render specs/dilated_window.yaml
"""Causal attention to every fourth of the 512 most recent keys.

After Longformer (2020), arXiv:2004.05150, section 3.1.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
