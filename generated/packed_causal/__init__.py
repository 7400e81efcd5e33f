# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_causal.yaml
#   content hash  82565fff665bcc24
#   text hash     c325ee4946557bbd
#   render with   attnforge render specs/packed_causal.yaml
"""Causal attention for sequences packed into one tensor.

After FlashAttention-2 (2023), arXiv:2307.08691, its variable-length interface.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
