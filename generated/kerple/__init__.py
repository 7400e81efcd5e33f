# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/kerple.yaml
#   content hash  a93ab5aa7aa3992c
#   text hash     0fb7d9ecfe6a39ee
#   render with   attnforge render specs/kerple.yaml
"""Causal attention that falls with the logarithm of the distance, at a learned rate.

After KERPLE (2022), arXiv:2205.09921, the logarithmic kernel.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
