# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_log_decay.yaml
#   content hash  ff343a064f5fa1f1
#   text hash     a5d4779ac06ad4b7
#   render with   attnforge render specs/packed_log_decay.yaml
"""Causal attention that forgets by a learned decay, for sequences packed into one tensor.

After Forgetting Transformer (2025), arXiv:2503.02130.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
