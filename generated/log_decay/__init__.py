# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/log_decay.yaml
#   content hash  68276e9cd5694ffe
#   text hash     3ca9e80bdb18bb73
#   render with   attnforge render specs/log_decay.yaml
"""Causal attention that forgets by a decay learned for each token and head.

After Forgetting Transformer (2025), arXiv:2503.02130.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
