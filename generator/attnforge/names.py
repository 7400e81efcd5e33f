"""Names that a spec may give: keywords of `attention` that collide with nothing in the generated files."""

from __future__ import annotations

import builtins
import keyword
import re

from .parser import WORDS

# keywords that the generated functions have anyway
CALL = frozenset(
    """
    cos cu_seqlens cu_seqlens_k cu_seqlens_q k max_seqlen max_seqlen_k max_seqlen_q positions q return_lse scale
    sin v
    """.split()  # noqa: SIM905
)
# what the generated files call their own values
_LOCAL = frozenset(
    """
    acc angles annotations attend attention backward batch block case contextlib count ctx cuts_k cuts_q
    dataclass delta device dims dk dlse dout dp dq ds dtype dv field first forward found full full_first
    full_last generator got grad gradients grads h heads hi i inputs inside itertools json k_desc k_end k_first
    k_last k_len k_offset k_pos k_start k_tile k_total keep kernels key kv_h kv_heads l last launch left length
    lengths lens lo longest low lse lse_dtype lses m m_new make math names numbers os out out_dtype outs p pair
    pivot position pytest q_desc q_end q_first q_last q_len q_offset q_pos q_start q_tile q_total query
    reference replace result rotate rounds_to row rows scan self sequence shape shift shrink sizes slope span
    speeds step stride sums tensors test tile tiles tl token tokens top torch total triton units upstream value
    visible wanted weight
    """.split()  # noqa: SIM905
)
_ENDINGS = ("_ptr", "_desc", "_tile", "_base", "_sum", "_q", "_k", "_slope", "_turned")
_MODULES = frozenset(
    """
    api attnforge generated kernels launch math os reference test tests torch triton
    """.split()  # noqa: SIM905
)


def wrong_keyword(name: str) -> str | None:
    """Why a name cannot become a keyword of `attention`, if it cannot."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or not name.isascii():
        return f"expected lower-case letters, digits and underscores, got {name!r}"
    if len(name) > 40:
        return "a name may have 40 characters"
    if keyword.iskeyword(name) or hasattr(builtins, name):
        return f"{name!r} is a word of Python"
    if name in WORDS:
        return f"{name!r} is a word of the expression language"
    if name in CALL:
        return f"{name!r} is a keyword that every generated function has"
    if name in _LOCAL or "_stride_" in name or name.endswith(_ENDINGS):
        return f"{name!r} is a name of the generated code's own: choose another one"
    return None


def wrong_package(name: str) -> str | None:
    """Why a name cannot become a package's, if it cannot."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return f"expected lower-case letters, digits and underscores, got {name!r}"
    if len(name) > 60:
        return "a name may have 60 characters"
    if keyword.iskeyword(name) or name in _MODULES:
        return f"{name!r} is taken: choose another name"
    return None
