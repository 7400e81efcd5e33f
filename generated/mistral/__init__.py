# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/mistral.yaml
#   content hash  6ab6e9ba9d7fd6d7
#   text hash     f926a37afd9d59bb
#   render with   attnforge render specs/mistral.yaml
"""Causal attention to the 4096 most recent keys with rotary embedding.

After Mistral 7B (2023), arXiv:2310.06825.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
