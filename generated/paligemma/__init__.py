# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/paligemma.yaml
#   content hash  bd6b88a066659953
#   text hash     7e2fc669f80d9ac8
#   render with   attnforge render specs/paligemma.yaml
"""An image and a prompt that all see as a prefix, and text that sees causally.

After PaliGemma (Google, 2024), arXiv:2407.07726.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
