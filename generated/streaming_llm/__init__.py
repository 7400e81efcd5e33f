# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/streaming_llm.yaml
#   content hash  fb97c35bb27e89c3
#   text hash     d80fb30c0ae92568
#   render with   attnforge render specs/streaming_llm.yaml
"""Causal attention to the 1024 most recent keys and to the first four.

After StreamingLLM (2023), arXiv:2309.17453.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
