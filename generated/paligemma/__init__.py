# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/paligemma.yaml
#   content hash  743197c33464f5ef
#   text hash     287f53b4c79f33f0
#   render with   attnforge render specs/paligemma.yaml
"""An image and a prompt that all see as a prefix, and text that sees causally.

After PaliGemma (Google, 2024), arXiv:2407.07726.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
