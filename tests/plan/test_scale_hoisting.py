"""Constant factors of scores that kernels apply elsewhere than to each score."""

from __future__ import annotations

import math

import pytest

from attnforge.expressions import evaluation
from attnforge.expressions.tree import SCORE, Node
from attnforge.plan.scale_hoisting import factored


def number(value: float) -> Node:
    return Node("num", (), value, "float" if isinstance(value, float) else "int")


def call(op: str, *args: Node) -> Node:
    return Node(op, args, None, "float")


CAP = call("*", number(50.0), call("tanh", call("/", SCORE, number(50.0))))
MIXED = call("+", call("tanh", call("/", SCORE, number(3.0))), SCORE)
TWO_WAYS = call("+", call("tanh", call("/", SCORE, number(3.0))), call("*", number(2.0), SCORE))
TWICE = call("*", call("tanh", call("/", SCORE, number(3.0))), call("exp", call("/", SCORE, number(3.0))))


@pytest.mark.parametrize(
    ("scores", "inner", "outer", "both"),
    [
        ([CAP], ("/", 50.0), 50.0, 1.0),
        ([TWICE], ("/", 3.0), 1.0, 1 / 3),
        ([call("*", SCORE, number(2)), CAP], ("*", 2.0), 50.0, 100.0),
        ([MIXED], ("*", 1.0), 1.0, 1.0),
        ([TWO_WAYS], ("*", 1.0), 1.0, 1.0),
        ([call("*", number(-2.0), call("tanh", SCORE))], ("*", 1.0), 1.0, 1.0),
        ([call("/", number(2.0), SCORE)], ("*", 1.0), 1.0, 1.0),
        ([call("*", number(1e30), SCORE)], ("*", 1.0), 1.0, 1.0),
        ([], ("*", 1.0), 1.0, 1.0),
    ],
)
def test_numbers_are_taken_off_where_the_whole_term_has_them(
    scores: list[Node], inner: tuple[str, float], outer: float, both: float
) -> None:
    found = factored(scores)
    assert (found.inner, found.outer) == (inner, outer)
    assert math.isclose(found.both, both)
    # applied in their other places, they leave the value as it was
    for given in (-7.0, 0.25, 30.0):
        plain, bare = given, given * inner[1] if inner[0] == "*" else given / inner[1]
        for term, rest in zip(scores, found.scores, strict=True):
            plain, bare = (evaluation.evaluate(node, {"score": x}) for node, x in ((term, plain), (rest, bare)))
        assert math.isclose(plain, outer * bare)
