# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/mpt.yaml
#   content hash  5e245d573f80b6b3
#   text hash     8cac25f98295e2a9
#   render with   attnforge render specs/mpt.yaml
"""Attention with a prefix and linear biases.

After MPT-7B (MosaicML, 2023), with its prefix option.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
