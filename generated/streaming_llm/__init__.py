# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/streaming_llm.yaml
#   content hash  68602dd292669bbb
#   text hash     1f0e28ac62ed0f55
#   render with   attnforge render specs/streaming_llm.yaml
"""Causal attention to the 1024 most recent keys and to the first four.

After StreamingLLM (2023), arXiv:2309.17453.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
