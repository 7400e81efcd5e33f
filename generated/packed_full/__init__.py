# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_full.yaml
#   content hash  017855c97238bfb9
#   text hash     233b780afff7fe0d
#   render with   attnforge render specs/packed_full.yaml
"""Softmax attention without a mask, for sequences packed into one tensor.

After FlashAttention-2 (2023), arXiv:2307.08691, its variable-length interface.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
