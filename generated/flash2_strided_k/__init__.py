# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/flash2_strided_k.yaml
#   content hash  02b5d3bb2029281c
#   text hash     f9b01cc7bd6039d1
#   render with   attnforge render specs/flash2_strided_k.yaml
"""The forward pass of causal attention with keys loaded as columns, so that neighbouring elements are a whole row apart in memory.

After FlashAttention-2 (2023), arXiv:2307.08691.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
