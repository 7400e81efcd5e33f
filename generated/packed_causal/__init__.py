# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_causal.yaml
#   content hash  10e3bc5b28cf9534
#   text hash     ce5f1de588235124
#   render with   attnforge render specs/packed_causal.yaml
"""Causal attention for sequences packed into one tensor.

After FlashAttention-2 (2023), arXiv:2307.08691, its variable-length interface.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
