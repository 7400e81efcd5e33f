"""Suites test the numbers of their own spec: kernels with one number changed do not pass."""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import devices  # noqa: F401  # where kernels run is settled before triton is imported
import pytest
import unformatted
import unrewritten

from attnforge.language import spec
from attnforge.source import resources

pytestmark = pytest.mark.slow

SPECS, GENERATED = (Path(__file__).parents[2] / name for name in ("specs", "generated"))
# names and words about the spec are not numbers of its formula, nor are sizes of tables, which arguments must have
WORDS = re.compile(r"^ *(name|description|citation|group|\w+: \{axes):|#.*$")
NUMBER = re.compile(r"(?<![\w.])\d+(\.\d+)?(?![\w.])")
# a table's last entry serves all distances beyond it
IDLE = {("shaw", "32 -> 33")}


def changes(path: Path) -> Iterator[tuple[str, str]]:
    """The text around each number of a file, and the file with that number changed."""
    text = path.read_text(encoding="utf-8")
    for i, line in enumerate(lines := text.splitlines()):
        for found in () if WORDS.match(line) else NUMBER.finditer(line):
            number = found.group()
            other = f"{float(number) * 1.05:.6g}" if "." in number else str(int(number) + 1)
            changed = line[: found.start()] + other + line[found.end() :]
            place = f"{line[max(0, found.start() - 14) : found.start()].strip()}{number} -> {other}"
            yield place, "\n".join([*lines[:i], changed, *lines[i + 1 :]]) + "\n"


def every_change() -> Iterator[tuple[str, str, str]]:
    for path in sorted(SPECS.glob("*.yaml")):
        for place, text in changes(path):
            if not any(path.stem == name and place.endswith(change) for name, change in IDLE):
                yield path.stem, place, text


def shipped(name: str) -> dict[str, str]:
    return {path.name: path.read_text() for path in (GENERATED / name).glob("*.py")}


@pytest.mark.parametrize(("name", "place", "text"), [pytest.param(*c, id=f"{c[0]}: {c[1]}") for c in every_change()])
def test_no_other_number_passes(
    name: str, place: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "specs" / f"{name}.yaml"
    shutil.copytree(SPECS / "terms", path.parent / "terms")
    path.write_text(text, encoding="utf-8")
    changed = unformatted.file(spec.load(path, terms=resources.terms_for(path)), "kernels.py")
    # the names of packages that the process has imported are taken
    package = tmp_path / f"{name}_{abs(hash(place))}"
    package.mkdir()
    for file, content in (shipped(name) | {"kernels.py": changed}).items():
        (package / file).write_text(content, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with unrewritten.assertions():
        suite = importlib.import_module(f"{package.name}.test_{name}")
    with pytest.raises(AssertionError, match="error"):
        check(suite, monkeypatch)


def check(suite: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks the values of a suite's cases, beginning with those that exist for the numbers of the spec."""
    for case in getattr(suite, "FAR", ()):
        suite.test_values_where_the_numbers_of_the_spec_decide(case, monkeypatch)
    for case in (suite.SMALL, *suite.CASES):
        suite.check(case)
