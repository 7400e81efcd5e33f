# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gpt2_dropout.yaml
#   content hash  b4e3f638c30d43c9
#   text hash     0b99ceb437fcbd02
#   render with   attnforge render specs/gpt2_dropout.yaml
"""Causal attention with dropout of the weights, for training.

After GPT-2 (OpenAI, 2019).
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
