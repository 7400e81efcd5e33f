# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/forgetting_transformer.yaml
#   content hash  0a34b01dfdf2d310
#   text hash     a45c81104d56e573
#   render with   attnforge render specs/forgetting_transformer.yaml
"""Causal attention with a forget gate learned for each token and head.

After Forgetting Transformer (2025), arXiv:2503.02130.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
