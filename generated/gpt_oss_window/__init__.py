# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gpt_oss_window.yaml
#   content hash  27432cd51d9141fa
#   text hash     ae7fc570a80ac813
#   render with   attnforge render specs/gpt_oss_window.yaml
"""The banded layers of gpt-oss, with a window of 128 keys and a learned sink for each head.

After gpt-oss (OpenAI, 2025), arXiv:2508.10925.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
