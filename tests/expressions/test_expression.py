"""What the language refuses because the steps after the parser could not handle it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnforge.expressions.evaluation import evaluate
from attnforge.expressions.folding import constant, fold
from attnforge.expressions.functions import FUNCTIONS
from attnforge.expressions.parser import LARGEST, Runtime, Scope, parse
from attnforge.expressions.tree import Node
from attnforge.language.spec import load
from attnforge.printing.printers import SMOOTH
from attnforge.source.errors import Location, Problems
from attnforge.tiling.ranges import spans

OPTIONS: dict[str, int | float | bool | Runtime] = {"size": 5, "huge": 3e38}


def told(text: str, kind: str = "score") -> tuple[Node | None, list[tuple[int, str]]]:
    """The tree of an expression, and its mistakes with their columns."""
    problems = Problems()
    scope = Scope(kind, OPTIONS)  # type: ignore[arg-type]
    node = parse(text, scope, lambda offset: Location("x", 1, offset + 1), problems)
    return node, [(p.location.column, p.message) for p in problems]


COMMENT = "'#' is not part of the language: a comment goes outside the expression"
BAD = [
    ("mask", "k <= q # near\n and q - k < 5", 8, COMMENT),
    ("score", "score # all", 7, COMMENT),
    ("score", "sco\0re", 4, r"'\x00' is not part of the language"),
    ("score", "score + \ud800", 9, r"'\ud800' is not part of the language"),
    ("score", "score \\\n + 1", 8, r"cannot read this expression: '\' is not part of the language"),
    ("score", "score + '", 9, "cannot read this expression: a string is not part of the language"),
    ("score", "1" * 5000, 5000, "cannot read this expression: this number is too large"),
    ("mask", "k <= 1 or q = k", 13, "cannot read this expression: "
     "'=' is not part of the language (did you mean '=='?)"),
    ("score", "score + 9 ** 9 ** 9", 14, "whole numbers may go up to 2**28"),
    ("score", "score ** (60 + 60)", 11, "powers may go up to 64"),
    ("mask", "k < 268435456 ** 64", 5, "this number is too large"),
    ("mask", "k < 2 ** 20 * 512", 5, "whole numbers may go up to 2**28"),
    ("score", "score * 1e39", 9, "this number is too large"),
    ("score", "score * (huge * 2)", 10, "this number is too large"),
    ("score", "score + exp(1000)", 9, "this number is too large"),
    ("score", "score + log(0)", 9, "this has no value"),
    ("score", "score + log1p(-1)", 9, "this has no value"),
    ("score", "score + sqrt(1 - 2)", 9, "this has no value"),
    ("score", "score + (-8) ** 0.5", 9, "this has no value"),
    ("score", "score + 0 ** -1", 9, "this has no value"),
    ("mask", "k % (size - 5) == 0", 6, "division by zero"),
    ("mask", "k < q // (1 if 2 < 1 else 0)", 11, "division by zero"),
    ("score", "tan(scor)", 5, "unknown name 'scor' (did you mean 'score'?)"),
    ("score", "k < q", 1, "expected a number, got a condition: a score is a number such as score + 1"),
    ("default", "h < 1", 1, "expected a number, got a condition: a default is a number"),
    ("score", "min(" + ", ".join(["score"] * 1400) + ")", 1, "this expression joins more than 100 parts"),
    ("mask", " or ".join(["k < 1"] * 1000), 1, "this expression joins more than 100 parts"),
    ("mask", " < ".join(["k"] * 2000), 1, "this expression joins more than 100 parts"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "column", "message"), BAD)
def test_mistakes(kind: str, text: str, column: int, message: str) -> None:
    found = told(text, kind)[1]
    assert (column, message) in found, found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-268435456", -LARGEST),
        ("2 ** 28", LARGEST),
        ("3e38", 3e38),
        ("2 ** -64", 2.0**-64),
        ("sigmoid(-1000)", 0.0),
        ("softplus(1000)", 1000.0),
        ("floor(log(8) / log(2) + 0.001)", 3),
    ],
)
def test_constants_within_bounds(text: str, value: float) -> None:
    node, mistakes = told(text)
    assert node is not None, mistakes
    assert constant(node) == pytest.approx(value)


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Larger constant expressions made of smaller ones."""
    operators = st.sampled_from(["+", "-", "*", "/", "//", "%", "**"])
    return st.one_of(
        st.tuples(inner, operators, inner).map(lambda x: f"({' '.join(x)})"),
        st.tuples(st.sampled_from([name for name, function in FUNCTIONS.items() if function.count == 1]), inner).map(
            lambda x: f"{x[0]}({x[1]})"
        ),
        st.tuples(inner, inner, inner).map(lambda x: f"({x[0]} if {x[1]} < {x[2]} else {x[1]})"),
    )


literals = st.sampled_from(["0", "1", "2", "9", "64", "268435456", "0.5", "1e30", "3e38", "size"])


@settings(max_examples=400, deadline=None)
@given(st.recursive(literals, nested, max_leaves=8))
def test_a_constant_is_a_number_that_float32_holds_or_is_refused(text: str) -> None:
    node, mistakes = told(text)
    if node is None:
        assert mistakes
        return
    value = evaluate(node, {})
    assert math.isfinite(value) and abs(value) <= 3.4e38
    if re.search(r"%|//|floor", text) and re.search(r"\*\*|" + "|".join(SMOOTH), text):
        # a rounded quotient, or its remainder, depends on the last bit of the dividend
        return
    assert constant(node) == pytest.approx(value, rel=1e-9, abs=1e-12)
    assert fold(node).value == pytest.approx(value, rel=1e-9, abs=1e-12)


def test_a_root_of_a_negative_number_is_no_number() -> None:
    assert math.isnan(evaluate(Node("**", (Node("num", (), -2.0), Node("num", (), 0.5))), {}))


@pytest.mark.parametrize("text", ["min(" + ", ".join(["q"] * 90) + ") >= k", " or ".join(["k < q"] * 90)])
def test_the_longest_chains_can_be_worked_with(text: str, tmp_path: Path) -> None:
    path = tmp_path / "chain.yaml"
    path.write_text(f"name: chain\nmask:\n  - expr: {json.dumps(text)}\n")
    spec = load(path, terms=[])
    assert spans(spec.masks[0].keep, "k")
