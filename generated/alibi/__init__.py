# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/alibi.yaml
#   content hash  9b9b2e97e47ffd4d
#   text hash     3cb59fb4be6d4664
#   render with   attnforge render specs/alibi.yaml
"""Causal attention with linear biases, one slope a head.

After Train Short, Test Long (2021), arXiv:2108.12409.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
