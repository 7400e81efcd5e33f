# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/deepseek_mla.yaml
#   content hash  933855de72715e4c
#   text hash     9c5e3f242b99cb0c
#   render with   attnforge render specs/deepseek_mla.yaml
"""Multi-head latent attention after its projections, with head sizes of 192 for q and k and 128 for v.

After DeepSeek-V2 (2024), arXiv:2405.04434.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
