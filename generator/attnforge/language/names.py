"""Names that a spec may give: keywords of `attention`, and packages."""

from __future__ import annotations

import keyword
import re

from ..expressions.parser import WORDS

IDENTIFIER = re.compile("[A-Za-z][A-Za-z0-9_]*")
# keywords that generated functions have anyway
CALL = frozenset(
    """
    cos cu_seqlens cu_seqlens_k cu_seqlens_q dropout_p k k_lens k_starts max_seqlen max_seqlen_k max_seqlen_q positions
    q q_start return_lse scale seed sin sinks v
    """.split()  # noqa: SIM905
)
_MODULES = frozenset(
    """
    api attnforge generated kernels launch math os reference test tests torch triton
    """.split()  # noqa: SIM905
)


def wrong_keyword(name: str) -> str | None:
    """Why a name cannot become a keyword of `attention`, if it cannot."""
    if not IDENTIFIER.fullmatch(name):
        return f"expected letters of ASCII, digits and underscores, a letter first, got {name!r}"
    if len(name) > 40:
        return "a name may have 40 characters"
    if keyword.iskeyword(name):
        return f"{name!r} is a word of Python"
    if name in WORDS:
        return f"{name!r} is a word of the expression language"
    if name in CALL:
        return f"{name!r} is a keyword that generated functions have"
    return None


def wrong_package(name: str) -> str | None:
    """Why a name cannot become a package's, if it cannot."""
    if not IDENTIFIER.fullmatch(name):
        return f"expected letters of ASCII, digits and underscores, a letter first, got {name!r}"
    if len(name) > 60:
        return "a name may have 60 characters"
    if keyword.iskeyword(name) or name in _MODULES or name.lower() in ("true", "false", "null"):
        return f"{name!r} is taken: choose another name"
    return None
