# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/deepseek_mla.yaml
#   content hash  e2a53a50fb6b8897
#   text hash     b247c28bb7e88986
#   render with   attnforge render specs/deepseek_mla.yaml
"""Multi-head latent attention after its projections, with head sizes of 192 for q and k and 128 for v.

After DeepSeek-V2 (2024), arXiv:2405.04434.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
