# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/flash2_strided_k.yaml
#   content hash  de16366e8ad1bc02
#   text hash     2eb2d7171493941d
#   render with   attnforge render specs/flash2_strided_k.yaml
"""The forward pass of causal attention with keys loaded as columns, whose neighbours stand a whole row apart in memory.

After FlashAttention-2 (2023), arXiv:2307.08691.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
