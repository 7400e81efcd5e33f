# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/kerple.yaml
#   content hash  5c17eac6ef03d676
#   text hash     70c3d6a2f1047e65
#   render with   attnforge render specs/kerple.yaml
"""Causal attention that falls with the logarithm of the distance, at a learned rate.

After KERPLE (2022), arXiv:2205.09921, the logarithmic kernel.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
