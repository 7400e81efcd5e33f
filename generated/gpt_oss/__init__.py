# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gpt_oss.yaml
#   content hash  aaa13a333d32a94a
#   text hash     1b04d350cba4b4db
#   render with   attnforge render specs/gpt_oss.yaml
"""The full layers of gpt-oss, with a learned sink for each head.

After gpt-oss (OpenAI, 2025), arXiv:2508.10925.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
