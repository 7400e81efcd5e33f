# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama3_documents.yaml
#   content hash  bf6a5f7e4831e036
#   text hash     cf66cd058d4fd857
#   render with   attnforge render specs/llama3_documents.yaml
"""Llama 3 on documents packed into one row, none of which sees another.

After Llama 3 (Meta, 2024), arXiv:2407.21783, section 3.2.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
