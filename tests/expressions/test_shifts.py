"""The number of positions after which expressions repeat: the smallest known period, and never a wrong one."""

from __future__ import annotations

import pytest

from attnforge.expressions import shifts
from attnforge.expressions.evaluation import evaluate
from attnforge.expressions.inputs import Axis, Input
from attnforge.expressions.parser import Runtime, Scope, parse
from attnforge.expressions.tree import Node
from attnforge.source.errors import Location, Problems

INPUTS = {
    "table": Input("table", (Axis("size", 9),)),
    "rows": Input("rows", (Axis("batch"), Axis("key"))),
}


def of(text: str, kind: str = "mask") -> Node:
    problems = Problems()
    scope = Scope(kind, {"window": Runtime("window", "int")}, INPUTS)  # type: ignore[arg-type]
    node = parse(text, scope, lambda offset: Location("x", 1, offset + 1), problems)
    assert node is not None, [p.message for p in problems]
    return node


@pytest.mark.parametrize(
    ("text", "period"),
    [
        ("k <= q", 1),
        ("q - k < window and k + 3 > q - 7", 1),
        ("(q - k) % 4 == 0", 1),
        ("abs(q - k) // 5 < 3", 1),
        ("max(q - k, 2) < window", 1),
        ("q // 8 == k // 8", 8),
        ("q // 8 == k // 8 or q // 12 == k // 12", 24),
        ("q // 4 // 3 == k // 12", 12),
        ("(2 * q + 1) // 6 == (2 * k) // 6", 3),
        ("k % 10 < 3", 10),
        ("(q + k) % 4 == 1", 2),
        ("q // 8 * 8 <= k", 8),
    ],
)
def test_expressions_repeat(text: str, period: int) -> None:
    node = of(text)
    assert shifts.period(node) == period

    def values(shift: int) -> list[object]:
        return [evaluate(node, {"q": q + shift, "k": k + shift, "window": 6}) for q in range(48) for k in range(48)]

    assert [shift for shift in range(1, period + 1) if values(shift) == values(0)] == [period]


@pytest.mark.parametrize(
    "text", ["k < 4", "k < q // 2", "q + k < 9", "k_len - k < 5", "q % window == k % window", "max(q, 3) >= k"]
)
def test_expressions_that_do_not_repeat(text: str) -> None:
    assert shifts.period(of(text)) is None


def test_tables_are_read_at_what_repeats() -> None:
    assert shifts.period(of("score + table[k % 3 + q - k]", "score")) == 3
    assert shifts.period(of("score + table[k]", "score")) is None


def test_rows_of_tokens_move_along_or_stay() -> None:
    node = of("score + rows", "score")
    assert shifts.period(node) == 1
    assert shifts.period(node, {"rows"}) is None
