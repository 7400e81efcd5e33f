"""Which parts of scores kernels for Hopper GPUs read by distance, and which of them learn there."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnforge.language import spec
from attnforge.plan import plan
from attnforge.plan.plan import Plan

TABLE = "table: {axes: [head, 10], grad: true}"


def planned(text: str) -> Plan:
    return plan.build(spec.loads(f"name: mine\ndescription: A trial.\n{text}\n", Path(), shown="mine.yaml"))


@pytest.mark.parametrize(
    ("score", "learned", "at_once"),
    [
        ("score + table[clamp(q - k, 0, 9)]", 1, "(not wanted[3] or q.shape[-1] <= 128)"),
        ("score - 2 * table[clamp(q - k, 0, 9)]", 1, "(not wanted[3] or q.shape[-1] <= 128)"),
        ("score + table[clamp(q - k, 0, 9)] - table[(q - k) % 10]", 2, "(not wanted[3] or q.shape[-1] <= 128)"),
        # a part that another factor changes, or that reads an entry twice
        ("score + rate * table[clamp(q - k, 0, 9)]", 0, "not wanted[3]"),
        ("score + table[clamp(q - k, 0, 9)] * log(1 + abs(q - k))", 0, "not wanted[3]"),
        ("score * 2 + table[clamp(q - k, 0, 9)]", 0, "not wanted[3]"),
        # gradients that would be those of some entries alone
        ("score + table[clamp(q - k, 0, 9)] - exp(table[clamp(q - k, 0, 9)])", 0, "not wanted[3]"),
        ("score + table[clamp(q - k, 0, 9)] + 2 * table[clamp(q - k, 0, 9)]", 0, "not wanted[3]"),
        ("score + table[clamp(q - k, 0, 9)] + table[q % 10]", 0, "not wanted[3]"),
    ],
)
def test_what_tables_learn_is_complete_or_left_to_other_kernels(score: str, learned: int, at_once: str) -> None:
    rate = ", rate: {axes: [head]}" if "rate" in score else ""
    found = planned(f"score: [{{expr: '{score}'}}]\ninputs: {{{TABLE}{rate}}}")
    assert found.hopper and found.hopper.by_distance
    assert len(found.hopper.by_distance.learned) == learned and found.at_once == at_once
    assert bool(found.summed_at_once) == bool(learned)


def test_what_no_part_reads_by_distance_stays_as_it_is() -> None:
    for score in ("score + table[clamp(q, 0, 9)]", "score + 0.5 * (q - k)", "score + table[q // 7 - k // 7 + 3]"):
        found = planned(
            f"score: [{{expr: '{score}'}}]\ninputs: {{{TABLE}}}"
            if "table" in score
            else f"score: [{{expr: '{score}'}}]"
        )
        assert found.hopper and found.hopper.by_distance is None
    assert planned("score: [relative_bias]\ntargets: [portable]").hopper is None


def test_numbers_that_divide_axes_are_still_given() -> None:
    seen = "n: {axes: [], dtype: int, min: 1}, seen: {axes: [batch // n, key], dtype: bool}"
    found = planned(f"score: [relative_bias]\nmask: [{{expr: seen}}]\ninputs: {{{seen}}}")
    assert found.hopper and found.hopper.by_distance and found.hopper.backward
    for kernel in (found.hopper.forward, found.hopper.backward.kernel):
        assert {"in_n", "in_seen_ptr", "by_distance_ptr"} <= {part.name for part in kernel.parameters}


@pytest.mark.parametrize(
    ("text", "weight"),
    [
        ("score: [relative_bias]", "tabled"),
        ("score: [{expr: 'score + log(1 + abs(q - k))'}]\nmask: [causal]", "tabled"),
        ("score: [relative_bias]\ndropout: true", "drawn"),
        ("score: [relative_bias, bias]", "heavy"),
        ("score: [relative_bias, {expr: 'score + own'}]\ninputs: {own: {axes: [batch, key]}}", "rows"),
    ],
)
def test_what_terms_load_besides_decides_about_tiles(text: str, weight: str) -> None:
    found = planned(text)
    assert found.hopper and found.hopper.weight == weight
    if "log" not in text:  # portable kernels take the logarithm of each score
        assert found.tables.faster["forward"][64] == (0,)
