# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sink_window.yaml
#   content hash  05ce74c4dba5bba9
#   text hash     3832e362af000c89
#   render with   attnforge render specs/sink_window.yaml
"""Causal attention with a learned sink for each head, to the most recent keys that each call asks for.

After gpt-oss (OpenAI, 2025), arXiv:2508.10925, its layers of both kinds after their rotation.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
