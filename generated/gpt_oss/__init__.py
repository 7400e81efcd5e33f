# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gpt_oss.yaml
#   content hash  b837bac41a4a0a7a
#   text hash     e597b63db4cf4552
#   render with   attnforge render specs/gpt_oss.yaml
"""The full layers of gpt-oss, with a learned sink for each head.

After gpt-oss (OpenAI, 2025), arXiv:2508.10925.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
