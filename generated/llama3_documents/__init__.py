# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama3_documents.yaml
#   content hash  2e3f2cd1b6fc7b0d
#   text hash     d82c1b7b0fda228b
#   render with   attnforge render specs/llama3_documents.yaml
"""Llama 3 on documents packed into one row, none of which sees another.

After Llama 3 (Meta, 2024), arXiv:2407.21783, section 3.2.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
