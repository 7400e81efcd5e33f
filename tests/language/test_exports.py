"""The key `exports`, and the specs that cannot have what they ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnforge.language import spec
from attnforge.source import resources
from attnforge.source.errors import SpecError


def load(folder: Path, text: str) -> spec.Spec:
    path = folder / "some.yaml"
    path.write_text(f"name: some\n{text}\n")
    return spec.load(path, terms=resources.terms_for(path))


def test_a_spec_asks_for_decoding(tmp_path: Path) -> None:
    assert load(tmp_path, "exports: [decode]").exports == ("decode",)
    assert load(tmp_path, "mask: [causal]").exports == ()


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        ("exports: decode", "2:10", "exports: expected a list such as [decode], got decode"),
        ("exports: []", "2:10", "exports: expected a list such as [decode]"),
        ("exports: [decoding]", "2:11", "unknown export 'decoding' (did you mean 'decode'?)"),
        ("exports: [decode, decode]", "2:19", "decode stands twice"),
        ("dropout: true\nexports: [decode]", "3:11", "decode: dropout is for training"),
        ("algorithm: flash1\nexports: [decode]", "3:11", "decode: the algorithm flash1 is an earlier order"),
        ("exports: [decode]\nmask: [causal]\nscore: [log_decay]", "2:11", "decode: log_decay is summed over tokens"),
        (
            "exports: [decode]\nscore: [expr: score * out]\ninputs: {out: {axes: [head]}}",
            "2:11",
            "decode: 'out' is a keyword that decoding has anyway",
        ),
    ],
)
def test_what_a_spec_cannot_have_is_told_with_its_place(tmp_path: Path, text: str, place: str, told: str) -> None:
    with pytest.raises(SpecError) as found:
        load(tmp_path, text)
    assert f"some.yaml:{place}: error: {told}" in str(found.value)
