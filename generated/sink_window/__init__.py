# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sink_window.yaml
#   content hash  9ad59c050e5d8f91
#   text hash     50e44134a04a1f3e
#   render with   attnforge render specs/sink_window.yaml
"""Causal attention with a learned sink for each head, to the most recent keys that each call asks for.

After gpt-oss (OpenAI, 2025), arXiv:2508.10925, its layers of both kinds after their rotation.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
