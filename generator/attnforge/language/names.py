"""Names that a spec may give: keywords of `attention`, and packages."""

from __future__ import annotations

import keyword
import re

from ..expressions.parser import WORDS

IDENTIFIER = re.compile("[A-Za-z][A-Za-z0-9_]*")
# keywords of generated functions, by the line of a spec that adds them; "": every spec
_CALL = {
    "": "q k v scale return_lse",
    "layout: dense": "k_lens k_starts q_start",
    "layout: packed": "cu_seqlens cu_seqlens_q cu_seqlens_k max_seqlen max_seqlen_q max_seqlen_k",
    "rope": "cos sin positions",
    "sink: true": "sinks",
    "dropout: true": "dropout_p seed",
}
_SAID = {name: said for said, found in _CALL.items() for name in found.split()}
_MODULES = frozenset(
    """
    api attnforge generated kernels launch math os reference test tests torch triton
    """.split()  # noqa: SIM905
)


_WANTED = "expected letters of ASCII, digits and underscores, a letter first"
_ANOTHER = ": choose another name"


def _meant(name: str) -> str:
    """A suggestion for a name in which only hyphens, points or spaces are wrong, "" for others."""
    found = re.sub("[-. ]+", "_", name)
    return f" (did you mean {found!r}?)" if IDENTIFIER.fullmatch(found) else ""


def wrong_keyword(name: str) -> str | None:
    """Why a name cannot become a keyword of `attention`; None if it can."""
    if not IDENTIFIER.fullmatch(name):
        return f"{_WANTED}, got {name!r}{_meant(name)}"
    if len(name) > 40:
        return "a name may have 40 characters"
    if keyword.iskeyword(name):
        return f"{name!r} is a word of Python{_ANOTHER}"
    if name in WORDS:
        return f"{name!r} is a word of the expression language{_ANOTHER}"
    if name in _SAID:
        where = f" with `{_SAID[name]}`, and is reserved in every spec" if _SAID[name] else ""
        return f"{name!r} is a keyword that generated functions have{where}{_ANOTHER}"
    return None


def wrong_package(name: str) -> str | None:
    """Why a name cannot become the name of a package; None if it can."""
    if not IDENTIFIER.fullmatch(name):
        return f"{_WANTED}, got {name!r}{_meant(name)}"
    if len(name) > 60:
        return "a name may have 60 characters"
    if keyword.iskeyword(name) or name in _MODULES or name.lower() in ("true", "false", "null"):
        return f"{name!r} is taken{_ANOTHER}"
    return None


def wrong_name(name: str, stem: str) -> str | None:
    """Why a spec cannot have a name in a file of this stem; None if it can."""
    if why := wrong_package(name):
        return f"{why}; call the file the same" if name == stem and _meant(name) else why
    if wrong_package(stem):
        return f"expected the file's name, and {stem!r} cannot be one: call the file {name}.yaml"
    return None if name == stem else f"expected the file's name, {stem}, got {name}"
