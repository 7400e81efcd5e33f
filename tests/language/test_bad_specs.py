"""Every mistake that a spec can contain gets its own message, with its location."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnforge.language import spec
from attnforge.source import resources
from attnforge.source.errors import SpecError

FOLDER = Path(__file__).parents[1] / "bad_specs"
BAD = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def messages(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The messages about the mistakes in a bad spec."""
    monkeypatch.chdir(FOLDER.parent)
    path = Path(FOLDER.name) / f"{name}.yaml"
    with pytest.raises(SpecError) as caught:
        spec.load(path, terms=resources.terms_for(path))
    return str(caught.value) + "\n"


@pytest.mark.parametrize("name", BAD)
def test_message(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert messages(name, monkeypatch) == (FOLDER / f"{name}.txt").read_text()


def test_there_are_many() -> None:
    assert len(BAD) >= 100
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(BAD)
