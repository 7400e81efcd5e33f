# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gpt2_dropout.yaml
#   content hash  0bf959fc71cd4e65
#   text hash     f068612a71f2b7cb
#   render with   attnforge render specs/gpt2_dropout.yaml
"""Causal attention with dropout of the weights, for training.

After GPT-2 (OpenAI, 2019).
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
