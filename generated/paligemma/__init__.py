# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/paligemma.yaml
#   content hash  ee6a248f3955e9dd
#   text hash     1a1db52e6a6076f5
#   render with   attnforge render specs/paligemma.yaml
"""An image and a prompt that all see as a prefix, and text that sees causally.

After PaliGemma (Google, 2024), arXiv:2407.07726.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
