"""Text of an expression -> Python's syntax tree of it, with offsets that count characters of the text."""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Callable

from ..source import suggestions
from ..source.errors import Location, Problems

Place = Callable[[int], Location]
"""Turns an offset in an expression's text into its place in the user's file."""

LONGEST, DEEPEST = 10_000, 50
TOO_DEEP = f"this expression is nested deeper than {DEEPEST}"


def _foreign(sign: str) -> str:
    return f"{sign!r} is not part of the language (did you mean {suggestions.SIGNS[sign]!r}?)"


_VAGUE = ("invalid syntax", "f-string", "unexpected EOF", "(unicode error)", "cannot use", "positional argument")
_PLAIN = (
    (r".*(instead of '='|perhaps you meant)", _foreign("=")),
    (r"leading zeros", "a number may not begin with 0"),
    (r"Exceeds the limit", "this number is too large"),
    (r"unterminated", "a string is not part of the language"),
    (r"unexpected character after", "'\\' is not part of the language"),
    ("|".join(map(re.escape, _VAGUE)), "something is missing or out of place"),
)


_WORDS = {*keyword.kwlist} - {"and", "or", "not", "if", "else", "in", "is", "for"}


class _Unreadable(Exception):
    """The text is not an expression; has the offset of the mistake and the reason."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset, self.message = offset, message


def syntax(text: str, place: Place, problems: Problems) -> ast.expr | None:
    """The syntax tree; None if a problem was added."""
    try:
        return _read(text)
    except _Unreadable as why:
        problems.add(place(max(0, min(why.offset, len(text) - 1))), why.message)
        return None


def _read(text: str) -> ast.expr:
    if not text.strip():
        raise _Unreadable(0, "expected an expression")
    if len(text) > LONGEST:
        raise _Unreadable(0, f"an expression may have {LONGEST} characters, this one has {len(text)}")
    # lines are joined below, so a comment would swallow all lines after it
    if odd := re.search("[#\0\ud800-\udfff]", text):
        comment = ": a comment goes outside the expression" if odd[0] == "#" else ""
        raise _Unreadable(odd.start(), f"{odd[0]!r} is not part of the language{comment}")
    # so that lines may break anywhere, as inside brackets; offsets stay the same
    flat = text.replace("\r", " ").replace("\n", " ")
    start = len(flat) - len(flat.lstrip())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(flat[start:], mode="eval")
    except SyntaxError as error:
        # an offset of 0 means the end
        offset = start + error.offset - 1 if error.offset else len(text)
        offset -= flat[offset - 1 : offset + 1] in suggestions.SIGNS  # Python reports the second of two
        sign = next((sign for sign in suggestions.SIGNS if flat.startswith(sign, offset)), None)
        if word := next((word for word in re.finditer(r"\b[a-z]+\b", flat) if word[0] in _WORDS), None):
            raise _Unreadable(word.start(), f"{word[0]!r} is a word of Python: an input needs another name") from error
        raise _Unreadable(
            offset, f"cannot read this expression: {_foreign(sign) if sign else _plain(error.msg)}"
        ) from error
    except (RecursionError, MemoryError) as error:
        raise _Unreadable(0, TOO_DEEP) from error
    except ValueError as error:
        raise _Unreadable(0, f"cannot read this expression: {error}") from error
    if _deeper(tree.body, DEEPEST):
        raise _Unreadable(0, TOO_DEEP)
    for node in ast.walk(tree):
        if hasattr(node, "col_offset"):
            # Python counts bytes
            node.col_offset = start + len(flat[start:].encode()[: node.col_offset].decode(errors="ignore"))
    return tree.body


def _plain(message: str) -> str:
    return next((plain for pattern, plain in _PLAIN if re.match(pattern, message)), message)


def _deeper(tree: ast.AST, limit: int) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(limit):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True
