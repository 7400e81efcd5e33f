"""The pieces of specs and kernels that docs/how-it-works.md quotes are in the files that it names."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "how-it-works.md"
NAMED = re.compile(r"`((?:generated|specs)/[\w/]+\.(?:py|yaml))`")


def quotes(text: str) -> list[tuple[int, str, str]]:
    """Each quoted piece with its line, and the last file named in the text above it."""
    found = []
    for match in re.finditer(r"^```(?:python|yaml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        names = NAMED.findall(text, 0, match.start())
        found.append((text.count("\n", 0, match.start()) + 1, names[-1], match[1]))
    return found


def occurs(piece: str, text: str) -> bool:
    """Whether a file has these lines one after the other, at any indentation; `...` skips lines that are not shown."""
    lines, start = text.splitlines(), 0
    for part in re.split(r"^\.\.\.\n", piece, flags=re.MULTILINE):
        wanted = textwrap.dedent(part).splitlines()
        for i in range(start, len(lines) - len(wanted) + 1):
            if textwrap.dedent("\n".join(lines[i : i + len(wanted)])).splitlines() == wanted:
                start = i + len(wanted)
                break
        else:
            return False
    return True


QUOTES = quotes(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("line", "name", "piece"), QUOTES, ids=[f"line {line}" for line, _, _ in QUOTES])
def test_what_is_quoted_stands_in_the_file_that_is_named(line: int, name: str, piece: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert occurs(piece, text), f"docs/how-it-works.md:{line} quotes what {name} does not say:\n{piece}"


def test_no_block_is_left_out() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert 2 * len(QUOTES) == len(re.findall(r"^```", text, re.MULTILINE)) > 50


def test_quotes_are_compared() -> None:
    text = "def f():\n    a = 1\n    b = 2\n    c = 3\n"
    assert occurs("a = 1\nb = 2\n", text) and occurs("a = 1\n...\nc = 3\n", text)
    assert not occurs("a = 1\nc = 3\n", text) and not occurs("b = 2\n...\na = 1\n", text)
    assert not occurs("a = 1\n    b = 2\n", text)


def test_files_and_tests_that_the_page_names_are_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:tests|templates|generated|specs)/[\w/]*(?:\.\w+)?)`", text):
        assert (ROOT / name).exists(), name
    modules = {path.as_posix() for path in (ROOT / "generator" / "attnforge").rglob("*.py")}
    for name in re.findall(r"`((?!tests/|generated/)[\w/]+\.py)`", text):
        generated = name in ("checks.py", "kernels.py", "padding.py", "reference.py")
        assert generated or any(path.endswith(f"/{name}") for path in modules), name


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "pictures").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_readable_on_any_page(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    space = "{http://www.w3.org/2000/svg}"
    shapes = [child for child in root if child.tag in (f"{space}rect", f"{space}path", f"{space}text")]
    assert shapes[0].tag == f"{space}rect" and shapes[0].get("fill") == "#ffffff", "a light ground comes first"
    assert root.find(f"{space}title") is not None and root.find(f"{space}desc") is not None
    sizes = [float(text.get("font-size", "13")) for text in root.iter(f"{space}text")]
    assert min(sizes) >= 11
    assert path.name in PAGE.read_text(encoding="utf-8")
