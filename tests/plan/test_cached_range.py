"""The largest number of keys that a new token sees, as far as the numbers of a call determine it."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnforge.language import spec
from attnforge.plan import cached_range, plan
from attnforge.source import resources

EVERYTHING = ("2**28", "0", ())


@pytest.mark.parametrize(
    ("text", "reach", "first_keys", "numbers"),
    [
        ("mask: [causal]", *EVERYTHING),
        ("score: [alibi]", *EVERYTHING),
        ("mask: [causal, sliding_window: {size: 1024}]", "1023", "0", ()),
        ("mask: [causal, sliding_window: {size: runtime}]", "max(0, in_window - 1)", "0", ("in_window",)),
        ("mask: [causal, chunked: {size: 64}]", "63", "0", ()),
        ("mask: [causal, chunked: {size: 64}, sliding_window: {size: 20}]", "63", "0", ()),
        ("mask: [expr: 'k > q']", "0", "0", ()),
        ("mask: [causal, expr: '2 * q - 2 * k < 9']", "4", "0", ()),
        ("mask: [causal, expr: '2 * k > q']", *EVERYTHING),
        ("mask: [causal, any: [sliding_window: {size: 24}, expr: 'k < 4']]", "23", "4", ()),
        ("mask: [causal, any: [sliding_window: {size: 24}, segments]]", *EVERYTHING),
        ("mask: [causal, any: [sliding_window: {size: 24}, global_tokens: {count: 3}]]", *EVERYTHING),
        (
            "mask: [causal, expr: 'q - k < far']\ninputs: {far: {axes: [], dtype: int}}",
            "max(0, in_far - 1)",
            "0",
            ("in_far",),
        ),
        ("mask: [causal, expr: 'q - k < far']\ninputs: {far: {axes: [head], dtype: int}}", *EVERYTHING),
        ("mask: [causal, expr: 'q - k < far']\ninputs: {far: {axes: [batch], dtype: int}}", *EVERYTHING),
    ],
)
def test_the_range_of_a_mask(tmp_path: Path, text: str, reach: str, first_keys: str, numbers: tuple[str, ...]) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(f"name: some\nexports: [decode]\n{text}\n")
    planned = plan.build(spec.load(path, terms=resources.terms_for(path)))
    assert planned.decode
    assert planned.decode.seen == cached_range.CachedRange(reach, first_keys, numbers)


@pytest.mark.parametrize(
    ("text", "read", "reading"),
    [
        ("mask: [causal]", [("0", "position + 1")], ()),
        ("score: [alibi]", [("0", "k_len")], ()),
        ("mask: [tree]", [("0", "k_len")], ()),
        ("mask: [prefix_lm]", [("0", "position + 1")], ()),
        (
            "mask: [causal, sliding_window: {size: runtime}]",
            [("position - in_window + 1", "position + 1")],
            ("in_window",),
        ),
        ("mask: [causal, chunked: {size: 64}]", [("64 * (position // 64)", "position + 1")], ()),
        (
            "mask: [causal, any: [sliding_window: {size: 24}, expr: 'k < 4']]",
            [("0", "min(position + 1, 4)"), ("position - 23", "position + 1")],
            (),
        ),
        ("mask: [causal, expr: 'q - k < far']\ninputs: {far: {axes: [head], dtype: int}}", [], ()),
    ],
)
def test_the_keys_that_a_row_reads_for_certain(
    tmp_path: Path, text: str, read: list[tuple[str, str]], reading: tuple[str, ...]
) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(f"name: some\nexports: [decode]\n{text}\n")
    planned = plan.build(spec.load(path, terms=resources.terms_for(path)))
    assert planned.decode
    assert list(planned.decode.seen.read) == read
    assert planned.decode.seen.reading == reading
