# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/streaming_llm.yaml
#   content hash  aa0ec9bbb42c30dc
#   text hash     541ceeea4d54392a
#   render with   attnforge render specs/streaming_llm.yaml
"""Causal attention to the 1024 most recent keys and to the first four.

After StreamingLLM (2023), arXiv:2309.17453.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
