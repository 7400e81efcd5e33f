# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama3_documents.yaml
#   content hash  9d7f16defae6ec18
#   text hash     f7b818e5b59a6da0
#   render with   attnforge render specs/llama3_documents.yaml
"""Llama 3 on documents packed into one row, none of which sees another.

After Llama 3 (Meta, 2024), arXiv:2407.21783, section 3.2.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
