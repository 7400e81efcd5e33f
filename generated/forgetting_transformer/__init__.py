# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/forgetting_transformer.yaml
#   content hash  e9b530fd03e956c2
#   text hash     ca9a089a6c5dfd7c
#   render with   attnforge render specs/forgetting_transformer.yaml
"""Causal attention with a forget gate learned for each token and head.

After Forgetting Transformer (2025), arXiv:2503.02130.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
