# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/deepseek_mla.yaml
#   content hash  74d42442016d7133
#   text hash     16cbb95743738123
#   render with   attnforge render specs/deepseek_mla.yaml
"""Multi-head latent attention after its projections, with head sizes of 192 for q and k and 128 for v.

After DeepSeek-V2 (2024), arXiv:2405.04434.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
