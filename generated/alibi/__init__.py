# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/alibi.yaml
#   content hash  5dc1c70f85f3a262
#   text hash     745e6f0aeea17291
#   render with   attnforge render specs/alibi.yaml
"""Causal attention with linear biases, one slope a head.

After Train Short, Test Long (2021), arXiv:2108.12409.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
