# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sink_window.yaml
#   content hash  a0b4a244c678d674
#   text hash     e4e1c4172e38cb8a
#   render with   attnforge render specs/sink_window.yaml
"""Causal attention with a learned sink for each head, to the most recent keys that each call asks for.

After gpt-oss (OpenAI, 2025), arXiv:2508.10925, its layers of both kinds after their rotation.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
