"""Parts of a score that depend on positions by their distance alone: all are found, and keep their values."""

from __future__ import annotations

import math

import pytest

from attnforge.expressions.by_distance import at_distance, parts
from attnforge.expressions.evaluation import evaluate
from attnforge.expressions.inputs import Axis, Input
from attnforge.expressions.parser import Runtime, Scope, parse
from attnforge.expressions.tree import Node
from attnforge.source.errors import Location, Problems

INPUTS = {
    "table": Input("table", (Axis("head"), Axis("size", 99))),
    "rate": Input("rate", (Axis("head"),)),
    "own": Input("own", (Axis("batch"), Axis("head"))),
    "rows": Input("rows", (Axis("key"),)),
}
VALUES = {
    "score": 1.25, "h": 3, "rate": 0.3, "own": 0.5, "rows": -1.0, "window": 6,
    "table": lambda i: math.sin(5 * i) if 0 <= i < 99 else math.nan,
}  # fmt: skip


def found(text: str) -> list[Node]:
    problems = Problems()
    scope = Scope("score", {"window": Runtime("window", "int")}, INPUTS)  # type: ignore[arg-type]
    node = parse(text, scope, lambda offset: Location("x", 1, offset + 1), problems)
    assert node is not None, [p.message for p in problems]
    return list(parts(node, lambda read: INPUTS[str(read.value)].shared))


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


@pytest.mark.parametrize(
    "text",
    [
        "table[q - k + 40]",
        "table[clamp(k - q, -9, 9) + 9]",
        "table[(2 * q - 2 * k) // 3 % 7 + h]",
        "table[(16 if k > q else 0) + (abs(q - k) if q - k < 8 else min(15, 8 + floor(log(abs(q - k) / 8 + 1))))]",
        "rate * log(1 + abs(q - k)) * window",
        "exp(-rate * (q - k) / 8)",
        "(table[5] if q >= k + 3 else table[abs(3 * k - 3 * q) // 9])",
        "table[max(q, k) - min(q, k)]",
    ],
)
def test_a_part_has_the_values_that_it_has_at_distances(text: str) -> None:
    for whole in (f"score + {text}", f"score * {text} - rows"):
        node = found(whole)
        if text.startswith("table[max(q, k)"):
            assert node == []  # not known to be one
            continue
        (part,) = node
        made = at_distance(part)
        names = {n.value for n in made.walk() if n.op in ("var", "local")}
        assert "distance" in names and not names & {"q", "k"}
        for q in range(0, 40, 3):
            for k in range(40):
                there = evaluate(made, {**VALUES, "distance": q - k})
                assert same(float(there), float(evaluate(part, {**VALUES, "q": q, "k": k})))


@pytest.mark.parametrize(
    "text",
    [
        "score + table[q]",
        "score + table[q // 7 - k // 7 + 9]",
        "score + rows * (q - k)",
        "score + log(1 + score * (q - k))",
        "score + exp(k_len - k - q)",
        "score + table[3] * rate",
        "score + table[(2 * q + 1) // 2 - k + 40]",  # a distance in another way
        "score + table[q - (2 * k + 1) // 2 + 40]",
    ],
)
def test_other_parts_are_not_taken(text: str) -> None:
    assert found(text) == []


def test_each_of_several_parts_is_found() -> None:
    first, second = found("(score + log(1 + abs(q - k))) * k + rate * table[q - k + 50] * rows")
    assert {n.op for n in first.walk()} >= {"log", "abs"} and second.op == "*"
    (inner,) = found("score + own * log(1 + abs(q - k))")
    assert inner.op == "log"
