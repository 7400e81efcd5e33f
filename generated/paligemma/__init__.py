# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/paligemma.yaml
#   content hash  541a248d01f9889f
#   text hash     c35be54e0f67336d
#   render with   attnforge render specs/paligemma.yaml
"""An image and a prompt that all see as a prefix, and text that sees causally.

After PaliGemma (Google, 2024), arXiv:2407.07726.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
