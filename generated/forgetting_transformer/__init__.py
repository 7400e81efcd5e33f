# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/forgetting_transformer.yaml
#   content hash  ba5faf8be86ece09
#   text hash     1acb9da62b84d35c
#   render with   attnforge render specs/forgetting_transformer.yaml
"""Causal attention with a forget gate learned for each token and head.

After Forgetting Transformer (2025), arXiv:2503.02130.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
