"""Lists of the shipped variants and terms, and the starter specs that `attnforge new` writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ..source import located_yaml, resources
from ..source.errors import Problems
from ..source.messages import Refused

_STARTER = """\
name: {name}
description: Causal attention with a learned temperature for each head.

# layout: packed          # sequences of any lengths in one tensor, cut by cu_seqlens; default: dense
# heads: equal            # as many query heads as key heads; default: grouped (MHA, GQA, MQA)
# rope: {{layout: half}}    # rotary embedding of q and k inside the kernels; or layout: interleaved, dims: N

# A key is visible when every term allows it. `attnforge list` shows the terms that ship; `any`, `all` and `not`
# combine them, and `expr` states one in place.
mask:
  - causal
  # - sliding_window: {{size: 1024}}   # size: runtime makes it the keyword `window`
  # - expr: "q - k < 64 or k < 4"

# Applied in order to score = scale * (q . k), in natural-log units. Derivatives are worked out for you.
score:
  - expr: "score * temp"
  # - softcap: {{cap: 50.0}}

# The extra tensors and scalars that the expressions above name.
inputs:
  temp: {{axes: [head], grad: true}}
"""


def text(name: str, origin: Path | None) -> str:
    """The text of a new spec, from a shipped variant if one is given."""
    if origin is None:
        return _STARTER.format(name=name)
    problems = Problems()
    located_yaml.read(origin, str(origin), problems)
    problems.raise_if_any()
    written, found = re.subn(r"(?m)^name:.*$", f"name: {name}", origin.read_text(encoding="utf-8-sig"), count=1)
    if not found:
        raise Refused(f"{origin} has no line that begins with `name:`")
    # the user's variant is in none of the groups of shipped ones, and not in the paper that the original is from
    written = _entry("group").sub("", written)
    return _entry("citation").sub(lambda lines: re.sub("(?m)^(?=.)", "# ", lines[0]), written)


def _entry(key: str) -> re.Pattern[str]:
    """The lines of a key of a spec and of its value."""
    return re.compile(rf"^{key}:.*(?:\n+[ \t]+.*)*(?:\n|\Z)", re.MULTILINE)


def variants() -> dict[str, list[tuple[str, str]]]:
    """The shipped variants by group, with the description of each."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in resources.variants().values():
        variant = _described(path)
        found.setdefault(variant["group"], []).append((path.stem, variant["description"]))
    return dict(sorted(found.items()))


def shipped() -> dict[str, list[tuple[str, str]]]:
    """The shipped variants by group, and the terms by kind, with the description of each."""
    found = variants() | {"Mask terms": [], "Score terms": []}
    for path in sorted((resources.specs() / "terms").glob("*.yaml")):
        term = _described(path)
        found[f"{term['kind'].title()} terms"].append((path.stem, term["description"]))
    return found


def _described(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded
