# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gpt_oss.yaml
#   content hash  6481434d8ca80f2f
#   text hash     0fe92d3867c03582
#   render with   attnforge render specs/gpt_oss.yaml
"""The full layers of gpt-oss, with a learned sink for each head.

After gpt-oss (OpenAI, 2025), arXiv:2508.10925.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
