"""The comment that opens each generated file: what the file was made from, and a hash that shows hand edits."""

from __future__ import annotations

import hashlib
import itertools
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

_BLANK = "0" * 16
# No user's text on the first two lines: Python looks for an encoding there.
_HEADER = f"""\
# Written by attnforge. Do not edit: {{advice}}.
#
#   made from     {{source}}
#   content hash  {{content}}
#   text hash     {_BLANK}
#   render with   attnforge render {{command}}
"""
_PATTERN = re.compile(
    r"\A# Written by attnforge\..*\n#\n"
    r"#   made from     (?P<source>.*)\n"
    r"#   content hash  [0-9a-f]{16}\n"
    r"#   text hash     (?P<text>[0-9a-f]{16})\n"
)


@dataclass(frozen=True)
class Header:
    """What a generated file says of itself."""

    source: str
    intact: bool  # whether the text is still the one that was written


def write(source: str, *content: bytes) -> str:
    """The header of a file made from a spec; `content` is all that decides on the text."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in source)
    return _opening("change the spec, then render it again", shown, shlex.quote(shown), content)


def shared(template: str, *content: bytes) -> str:
    """The header of a file that is the same in every package, whatever its spec."""
    return _opening("it is the same in every package", f"templates/{template}", "SPEC", content)


def _opening(advice: str, source: str, command: str, content: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in content:
        digest.update(f"{len(part)}\0".encode())
        digest.update(part)
    return _HEADER.format(advice=advice, source=source, content=digest.hexdigest()[:16], command=command)


def stamp(text: str) -> str:
    """The text with the hash of itself in its header."""
    found = _PATTERN.match(text)
    assert found is not None, "the text has no header"
    return text[: found.start("text")] + _hash(text, found) + text[found.end("text") :]


def instead(text: str, body: str) -> str:
    """A file that stands in for a generated one for a while: under the same header, with another text."""
    opening = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True))
    return stamp(f"{''.join(opening)}\n{body}")


def read(text: str) -> Header | None:
    """What the header says, or None if the text has none."""
    found = _PATTERN.match(text)
    return Header(found["source"], found["text"] == _hash(text, found)) if found else None


def _hash(text: str, found: re.Match[str]) -> str:
    blank = text[: found.start("text")] + _BLANK + text[found.end("text") :]
    return hashlib.sha256(blank.encode("utf-8", "surrogateescape")).hexdigest()[:16]
