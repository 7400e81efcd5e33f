# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/mpt.yaml
#   content hash  16ccc84788748e79
#   text hash     3b539e1cc70a1aef
#   render with   attnforge render specs/mpt.yaml
"""Attention with a prefix and linear biases.

After MPT-7B (MosaicML, 2023), with its prefix option.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
