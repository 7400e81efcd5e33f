# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/streaming_llm.yaml
#   content hash  c0c0115a1f59bef2
#   text hash     04ccdd3b398aeb86
#   render with   attnforge render specs/streaming_llm.yaml
"""Causal attention to the 1024 most recent keys and to the first four.

After StreamingLLM (2023), arXiv:2309.17453.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
