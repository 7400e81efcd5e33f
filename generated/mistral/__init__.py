# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/mistral.yaml
#   content hash  c85c81ced06fdd07
#   text hash     7bdff7753d100ecd
#   render with   attnforge render specs/mistral.yaml
"""Causal attention to the 4096 most recent keys with rotary embedding.

After Mistral 7B (2023), arXiv:2310.06825.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
