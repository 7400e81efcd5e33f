"""Rendered text -> formatted text. The only importer of black."""

from __future__ import annotations

import functools
import itertools
import re

import black
from black.mode import TargetVersion
from black.parsing import InvalidInput

# set here because black would take its mode from the user's folder; pinned to the stable style of one calendar year
_MODE = black.Mode(target_versions={TargetVersion.PY310}, line_length=120)
_HEADS = ("def ", "class ", "async def ")
_BLANK = "\n\n"  # blank lines between functions and classes of a module, after the line end of one


class Unformattable(Exception):
    """A template wrote something that is not Python."""


def python(text: str, template: str) -> str:
    """The text in black's style; an error names the `template`."""
    try:
        return _BLANK.join(map(_black, _parts(text)))
    except InvalidInput:  # a part may have been cut within a string; and an error is to give its line in the whole text
        pass
    try:
        return _black(text)
    except InvalidInput as error:
        raise Unformattable(_message(text, template, str(error))) from error


@functools.lru_cache(8192)  # black takes nearly all of the time of a render, and packages share most of their parts
def _black(text: str) -> str:
    return black.format_str(text, mode=_MODE)


def _parts(text: str) -> list[str]:
    """The text split before each function or class of a module, its decorators and the comments right above it.

    The first one stays with the text before it, as imports decide how many blank lines are between.
    """
    lines = text.splitlines(keepends=True)
    heads, first, decorated = [], 0, False  # first: the first line that belongs to the next function or class
    for at, line in enumerate(lines):
        if line.startswith(_HEADS):
            heads.append(first)
        decorated = line.startswith("@") or (decorated and not line.startswith(_HEADS))
        if not decorated and not line.startswith("#"):
            first = at + 1
    return ["".join(lines[start:end]) for start, end in itertools.pairwise((0, *heads[1:], len(lines)))]


def _message(text: str, template: str, reason: str) -> str:
    message = f"template {template} wrote what is not Python"
    place = re.search(r"(\d+):(\d+)", reason)
    if not place:
        return f"{message}: {reason}"
    line = int(place[1])
    shown = enumerate(text.splitlines()[: line + 2], 1)
    excerpt = "\n".join(f"{'>' if n == line else ' '} {n:4} {x}" for n, x in shown if n >= line - 2)
    return f"{message}, at line {line} of its text:\n{excerpt}"
