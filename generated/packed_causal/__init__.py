# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_causal.yaml
#   content hash  fc62efb74d851498
#   text hash     c1f976165cf2a8a1
#   render with   attnforge render specs/packed_causal.yaml
"""Causal attention for sequences packed into one tensor.

After FlashAttention-2 (2023), arXiv:2307.08691, its variable-length interface.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
