# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/mpt.yaml
#   content hash  ca08cf71c76ee0c2
#   text hash     c25a3644e9d1a5a6
#   render with   attnforge render specs/mpt.yaml
"""Attention with a prefix and linear biases.

After MPT-7B (MosaicML, 2023), with its prefix option.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
