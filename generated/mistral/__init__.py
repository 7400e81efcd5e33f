# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/mistral.yaml
#   content hash  ebafabc421731b0d
#   text hash     33a297e06cd1e700
#   render with   attnforge render specs/mistral.yaml
"""Causal attention to the 4096 most recent keys with rotary embedding.

After Mistral 7B (2023), arXiv:2310.06825.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
