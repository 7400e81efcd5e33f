# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/forgetting_transformer.yaml
#   content hash  a3424fe0f4da5a79
#   text hash     abaa8cb5c5fef08f
#   render with   attnforge render specs/forgetting_transformer.yaml
"""Causal attention with a forget gate learned for each token and head.

After Forgetting Transformer (2025), arXiv:2503.02130.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
