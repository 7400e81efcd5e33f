# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/alibi.yaml
#   content hash  43eb53bdd7bc3e8c
#   text hash     9bdd40d835607611
#   render with   attnforge render specs/alibi.yaml
"""Causal attention with linear biases, one slope a head.

After Train Short, Test Long (2021), arXiv:2108.12409.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
