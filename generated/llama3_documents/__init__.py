# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama3_documents.yaml
#   content hash  a2bd6aac5624a12c
#   text hash     845c13ba23f0930e
#   render with   attnforge render specs/llama3_documents.yaml
"""Llama 3 on documents packed into one row, none of which sees another.

After Llama 3 (Meta, 2024), arXiv:2407.21783, section 3.2.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
