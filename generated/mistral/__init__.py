# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/mistral.yaml
#   content hash  4dd607e4bea4f905
#   text hash     64305d78946b88a7
#   render with   attnforge render specs/mistral.yaml
"""Causal attention to the 4096 most recent keys with rotary embedding.

After Mistral 7B (2023), arXiv:2310.06825.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
