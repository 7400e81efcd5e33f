# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gpt_oss.yaml
#   content hash  7766d10e3e0d5ecb
#   text hash     f03de7f5f0d25542
#   render with   attnforge render specs/gpt_oss.yaml
"""The full layers of gpt-oss, with a learned sink for each head.

After gpt-oss (OpenAI, 2025), arXiv:2508.10925.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
