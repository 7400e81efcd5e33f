# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/deepseek_mla.yaml
#   content hash  955c00718abc75ea
#   text hash     5e6d94c484a002a7
#   render with   attnforge render specs/deepseek_mla.yaml
"""Multi-head latent attention after its projections, with head sizes of 192 for q and k and 128 for v.

After DeepSeek-V2 (2024), arXiv:2405.04434.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
