# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gpt2_dropout.yaml
#   content hash  5087d6e0632de6d3
#   text hash     4b85ad3fa6bc8d76
#   render with   attnforge render specs/gpt2_dropout.yaml
"""Causal attention with dropout of the weights, for training.

After GPT-2 (OpenAI, 2019).
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
