# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_log_decay.yaml
#   content hash  49f5de8c68166b80
#   text hash     ee56dfc087528901
#   render with   attnforge render specs/packed_log_decay.yaml
"""Causal attention that forgets by a learned decay, for sequences packed into one tensor.

After Forgetting Transformer (2025), arXiv:2503.02130.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
