# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sink_window.yaml
#   content hash  0d34db9ec7203ef1
#   text hash     b6740e62502daf78
#   render with   attnforge render specs/sink_window.yaml
"""Causal attention with a learned sink for each head, to the most recent keys that each call asks for.

After gpt-oss (OpenAI, 2025), arXiv:2508.10925, its layers of both kinds after their rotation.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
