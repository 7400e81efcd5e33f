# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/mpt.yaml
#   content hash  855fe9b91f1e1df7
#   text hash     e3743b09f0273f98
#   render with   attnforge render specs/mpt.yaml
"""Attention with a prefix and linear biases.

After MPT-7B (MosaicML, 2023), with its prefix option.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
