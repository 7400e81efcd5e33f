"""The comment that opens each generated file: what the file was made from, and a hash that shows hand edits."""

from __future__ import annotations

import hashlib
import itertools
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

_BLANK = "0" * 16
# no text from users on the first two lines: Python looks for an encoding there
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
    r"#   content hash  (?P<content>[0-9a-f]{16})\n"
    r"#   text hash     (?P<text>[0-9a-f]{16})\n"
)


@dataclass(frozen=True)
class Header:
    """The facts in a generated file's header."""

    source: str
    content: str  # the hash of everything that determined the text
    intact: bool  # whether the text is still the one that was written


def write(source: str, *content: bytes) -> str:
    """The header of a file made from a spec; `content` enters its hash, besides the text that `close` is given."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in source)
    return _opening("change the spec, then render it again", shown, shlex.quote(shown), content)


def shared(template: str, *content: bytes) -> str:
    """The header of a file that is the same in every package, whatever its spec."""
    return _opening("it is the same in every package", f"templates/{template}", "SPEC", content)


def close(text: str) -> str:
    """The text of a file before it is formatted, with a content hash that depends on all of it."""
    return _with_content(text, hashlib.sha256(text.encode()).hexdigest()[: len(_BLANK)])


def _opening(advice: str, source: str, command: str, content: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in content:
        digest.update(f"{len(part)}\0".encode())
        digest.update(part)
    return _HEADER.format(advice=advice, source=source, content=digest.hexdigest()[:16], command=command)


def stamp(text: str) -> str:
    """The text with the hash of itself in its header."""
    found = _match(text)
    return text[: found.start("text")] + _hash(text, found) + text[found.end("text") :]


def instead(text: str, body: str) -> str:
    """A temporary replacement of a generated file: `body` under the file's header, with a blank content hash."""
    opening = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True))
    return stamp(_with_content(f"{''.join(opening)}\n{body}", _BLANK))


def read(text: str) -> Header | None:
    """The header's facts, or None if the text has none."""
    found = _PATTERN.match(text)
    return Header(found["source"], found["content"], found["text"] == _hash(text, found)) if found else None


def _with_content(text: str, digest: str) -> str:
    found = _match(text)
    return text[: found.start("content")] + digest + text[found.end("content") :]


def _match(text: str) -> re.Match[str]:
    found = _PATTERN.match(text)
    assert found is not None, "the text has no header"
    return found


def _hash(text: str, found: re.Match[str]) -> str:
    blank = text[: found.start("text")] + _BLANK + text[found.end("text") :]
    return hashlib.sha256(blank.encode("utf-8", "surrogateescape")).hexdigest()[:16]
