# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gpt2_dropout.yaml
#   content hash  b38bc78169711f77
#   text hash     4d7ad2bd5f4dc890
#   render with   attnforge render specs/gpt2_dropout.yaml
"""Causal attention with dropout of the weights, for training.

After GPT-2 (OpenAI, 2019).
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
