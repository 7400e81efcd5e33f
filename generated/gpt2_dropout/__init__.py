# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gpt2_dropout.yaml
#   content hash  e35cfc6b8e4c190a
#   text hash     5b89ecfc06b1d210
#   render with   attnforge render specs/gpt2_dropout.yaml
"""Causal attention with dropout of the weights, for training.

After GPT-2 (OpenAI, 2019).
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
