# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/alibi.yaml
#   content hash  1b1fe9cad6836bae
#   text hash     e5cd75d7b51195c8
#   render with   attnforge render specs/alibi.yaml
"""Causal attention with linear biases, one slope a head.

After Train Short, Test Long (2021), arXiv:2108.12409.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
