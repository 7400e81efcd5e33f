# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/dilated_window.yaml
#   content hash  cd91c2e731187ef5
#   text hash     e434d22a80f532a1
#   render with   attnforge render specs/dilated_window.yaml
"""Causal attention to every fourth of the 512 most recent keys.

After Longformer (2020), arXiv:2004.05150, section 3.1.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
