# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/forgetting_transformer.yaml
#   content hash  ab63096f75c2272d
#   text hash     eab88e182bff4f14
#   render with   attnforge render specs/forgetting_transformer.yaml
"""Causal attention with a forget gate learned for each token and head.

After Forgetting Transformer (2025), arXiv:2503.02130.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
