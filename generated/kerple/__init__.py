# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/kerple.yaml
#   content hash  97bb0c0deb9c29e2
#   text hash     a9df0d70c14a00d3
#   render with   attnforge render specs/kerple.yaml
"""Causal attention that falls with the logarithm of the distance, at a learned rate.

After KERPLE (2022), arXiv:2205.09921, the logarithmic kernel.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
