# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/deepseek_mla_absorbed.yaml
#   content hash  54ef70397bb4e46d
#   text hash     144c91d38dfc9615
#   render with   attnforge render specs/deepseek_mla_absorbed.yaml
"""Multi-head latent attention with its projections absorbed; keys of 512 latent and 64 rotated columns, values the latent ones.

After DeepSeek-V2 (2024), arXiv:2405.04434.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
