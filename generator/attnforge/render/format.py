"""Rendered text -> formatted text. The only importer of black."""

from __future__ import annotations

import functools
import re

import black
from black.mode import TargetVersion
from black.parsing import InvalidInput

# in code: black would take a mode from the user's folder; pinned to the stable style of one calendar year
_MODE = black.Mode(target_versions={TargetVersion.PY310}, line_length=120)


class Unformattable(Exception):
    """A template wrote something that is not Python."""


@functools.lru_cache(256)  # black takes nearly all of the time of a rendering, and packages are rendered again
def python(text: str, template: str) -> str:
    """The text in black's style; `template` is what an error names."""
    try:
        return black.format_str(text, mode=_MODE)
    except InvalidInput as error:
        raise Unformattable(_message(text, template, str(error))) from error


def _message(text: str, template: str, reason: str) -> str:
    message = f"template {template} wrote what is not Python"
    place = re.search(r"(\d+):(\d+)", reason)
    if not place:
        return f"{message}: {reason}"
    line = int(place[1])
    shown = enumerate(text.splitlines()[: line + 2], 1)
    excerpt = "\n".join(f"{'>' if n == line else ' '} {n:4} {x}" for n, x in shown if n >= line - 2)
    return f"{message}, at line {line} of its text:\n{excerpt}"
