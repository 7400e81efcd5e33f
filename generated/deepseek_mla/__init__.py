# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/deepseek_mla.yaml
#   content hash  456a80585a20f366
#   text hash     6dac11462661c898
#   render with   attnforge render specs/deepseek_mla.yaml
"""Multi-head latent attention after its projections, with head sizes of 192 for q and k and 128 for v.

After DeepSeek-V2 (2024), arXiv:2405.04434.
"""

from .api import attention
from .reference import reference

__all__ = ["attention", "reference"]
