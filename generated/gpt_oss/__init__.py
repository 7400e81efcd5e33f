# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gpt_oss.yaml
#   content hash  29db7e82b246f794
#   text hash     c158ddb07ea2d84d
#   render with   attnforge render specs/gpt_oss.yaml
"""The full layers of gpt-oss, with a learned sink for each head.

After gpt-oss (OpenAI, 2025), arXiv:2508.10925.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
