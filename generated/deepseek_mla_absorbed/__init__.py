# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/deepseek_mla_absorbed.yaml
#   content hash  fee6918fa6a59a47
#   text hash     e8c8c7374588d813
#   render with   attnforge render specs/deepseek_mla_absorbed.yaml
"""Multi-head latent attention with its projections absorbed; keys of 512 latent and 64 rotated columns, values the latent ones.

After DeepSeek-V2 (2024), arXiv:2405.04434.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
