# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/streaming_llm.yaml
#   content hash  fa4545312c2d4e04
#   text hash     3e014eed4b9aca3f
#   render with   attnforge render specs/streaming_llm.yaml
"""Causal attention to the 1024 most recent keys and to the first four.

After StreamingLLM (2023), arXiv:2309.17453.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
