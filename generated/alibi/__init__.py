# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/alibi.yaml
#   content hash  3eb5e88d2e1b40b3
#   text hash     090b4ef8243e01fa
#   render with   attnforge render specs/alibi.yaml
"""Causal attention with linear biases, one slope a head.

After Train Short, Test Long (2021), arXiv:2108.12409.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
