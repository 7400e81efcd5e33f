"""Text -> Markdown that shows it as it is: escaped words, tables, fenced blocks, links."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

# signs that have a meaning in Markdown; an underscore only has one at the edge of a word
_SIGNS = re.compile(r"[\\`*\[\]<>|~$&]|(?<![^\W_])_|_(?![^\W_])")
_OPENING = re.compile(r"^(\d*)([#+=.)-])")
_PAPERS = re.compile(r"arXiv:(\d{4}\.\d{4,5})|doi:(10\.[^\s,;()\\]+)")


def words(text: str) -> str:
    """Text on one line; text between backticks stays code."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    plain = "".join(part if i % 2 else _SIGNS.sub(r"\\\g<0>", part) for i, part in enumerate(parts))
    return _OPENING.sub(r"\1\\\2", plain)


def cited(text: str) -> str:
    """A citation, with links to the papers that it names."""

    def link(paper: re.Match[str]) -> str:
        return f"[{paper[0]}]({f'https://arxiv.org/abs/{paper[1]}' if paper[1] else f'https://doi.org/{paper[2]}'})"

    return _PAPERS.sub(link, words(text))


def code(text: str) -> str:
    """Text as code inside a line."""
    line = " ".join(text.split())
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def fenced(text: str, language: str) -> str:
    """Lines of code as a block."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    body = text.rstrip("\n")
    return f"{fence}{language}\n{body}\n{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already; a bar separates cells even inside code, so it is escaped there."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def between(page: str, begin: str, end: str, text: str) -> str:
    """A page with the text in the place between two lines that it has."""
    before, found, rest = page.partition(begin)
    _, also, after = rest.partition(end)
    assert found and also, f"README needs the lines {begin} and {end}"
    return f"{before}{found}\n{text}\n{also}{after}"


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def link(text: str, target: Path, page: Path, root: Path) -> str:
    """A link from a page to a file or folder, or the text alone if one of them is outside of the root."""
    root, target, folder = root.resolve(), target.resolve(), page.resolve().parent
    if not all(path.is_relative_to(root) for path in (target, folder)):
        return text
    return f"[{text}]({address(Path(os.path.relpath(target, folder)).as_posix())})"


def address(path: str) -> str:
    """A relative path, quoted for a link."""
    return quote(path)
