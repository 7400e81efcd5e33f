# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama3_documents.yaml
#   content hash  4a3314661224a0a8
#   text hash     8b2bbff0d8f90ba4
#   render with   attnforge render specs/llama3_documents.yaml
"""Llama 3 on documents packed into one row, none of which sees another.

After Llama 3 (Meta, 2024), arXiv:2407.21783, section 3.2.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
