# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_causal.yaml
#   content hash  740f82c63c24867d
#   text hash     c19646ccdfa8780a
#   render with   attnforge render specs/packed_causal.yaml
"""Causal attention for sequences packed into one tensor.

After FlashAttention-2 (2023), arXiv:2307.08691, its variable-length interface.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
