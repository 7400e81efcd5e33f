# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/kerple.yaml
#   content hash  ac9ecae7a7180e92
#   text hash     7e5b723ea2b326a2
#   render with   attnforge render specs/kerple.yaml
"""Causal attention that falls with the logarithm of the distance, at a learned rate.

After KERPLE (2022), arXiv:2205.09921, the logarithmic kernel.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
