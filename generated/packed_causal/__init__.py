# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_causal.yaml
#   content hash  fade1f326e2d00a3
#   text hash     d7d1b6a546234d3f
#   render with   attnforge render specs/packed_causal.yaml
"""Causal attention for sequences packed into one tensor.

After FlashAttention-2 (2023), arXiv:2307.08691, its variable-length interface.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
