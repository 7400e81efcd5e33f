# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/log_decay.yaml
#   content hash  e3c9c378c8169d4c
#   text hash     515bdf716ec58747
#   render with   attnforge render specs/log_decay.yaml
"""Causal attention that forgets by a decay learned for each token and head.

After Forgetting Transformer (2025), arXiv:2503.02130.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
