# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sink_window.yaml
#   content hash  cf22805a98c3f5ec
#   text hash     9e8ffb3a4752d3c3
#   render with   attnforge render specs/sink_window.yaml
"""Causal attention with a learned sink for each head, to the most recent keys that each call asks for.

After gpt-oss (OpenAI, 2025), arXiv:2508.10925, its layers of both kinds after their rotation.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
