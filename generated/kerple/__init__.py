# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/kerple.yaml
#   content hash  a6b678b41a8516c5
#   text hash     3b3ee0ebdc156e9e
#   render with   attnforge render specs/kerple.yaml
"""Causal attention that falls with the logarithm of the distance, at a learned rate.

After KERPLE (2022), arXiv:2205.09921, the logarithmic kernel.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
