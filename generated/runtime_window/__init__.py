# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/runtime_window.yaml
#   content hash  a81987b4cf7e41a1
#   text hash     7c98c0874dd2c79c
#   render with   attnforge render specs/runtime_window.yaml
"""Causal attention to the most recent keys, as many as each call says.

After Longformer (2020), arXiv:2004.05150.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
