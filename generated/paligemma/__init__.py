# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/paligemma.yaml
#   content hash  1226234a2d61eef2
#   text hash     ff6278f089228b42
#   render with   attnforge render specs/paligemma.yaml
"""An image and a prompt that all see as a prefix, and text that sees causally.

After PaliGemma (Google, 2024), arXiv:2407.07726.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
