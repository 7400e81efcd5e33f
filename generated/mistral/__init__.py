# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/mistral.yaml
#   content hash  7c147ca3637cd0b8
#   text hash     c8bf7934d7be20c2
#   render with   attnforge render specs/mistral.yaml
"""Causal attention to the 4096 most recent keys with rotary embedding.

After Mistral 7B (2023), arXiv:2310.06825.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
