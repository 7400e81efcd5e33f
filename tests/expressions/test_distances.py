"""Distances as floats: as exact as the integers that they represent, and only where they would become floats anyway."""

from __future__ import annotations

import math

import pytest

from attnforge.expressions.distances import DISTANCE, as_floats, as_one, in_parts, reads_places
from attnforge.expressions.evaluation import evaluate
from attnforge.expressions.tree import SCORE, Node, Type

Q, K = (Node("var", value=name, type="int") for name in "qk")
ROOM = Node("option", value="room", type="int")
SLOPE = Node("input", value="slope")
PLACES = [(0, 0), (5, 0), (0, 5), (-3, 2), (2**28, 2**28 - 2**23 + 1), (4097, 1)]


def of(op: str, *args: Node, kind: Type = "int") -> Node:
    return Node(op, args, type=kind)


def number(value: int) -> Node:
    return Node("num", value=value, type="int")


APART = of("-", Q, K)
FAR = of("abs", APART)
MADE = [
    APART,
    of("-", K, Q),
    FAR,
    of("neg", FAR),
    of("-", of("+", Q, number(1)), K),
    of("max", APART, number(1)),
    of("min", of("max", of("-", K, Q), number(-16)), number(16)),
    of("-", number(7), FAR),
    of("*", number(3), FAR),
    of("*", APART, of("-", K, Q)),
    of("**", APART, number(2)),
    of("where", of("<", Q, K, kind="bool"), of("-", K, Q), number(0)),
]


def times_slope(node: Node) -> Node:
    return of("*", SLOPE, node, kind="float")


@pytest.mark.parametrize("node", MADE, ids=repr)
@pytest.mark.parametrize(("q", "k"), PLACES)
def test_values_and_zeros_are_those_of_whole_numbers(node, q, k):
    found = as_floats(node)
    assert found.type == "float" and reads_places(found)
    # floats shifted by the same distance, as in kernels
    env = {"q": q, "k": k, "q_at": float(q - 37), "k_at": float(k - 37)}
    value = evaluate(found, env)
    assert value == float(evaluate(node, env))
    assert value or math.copysign(1, value) == 1


@pytest.mark.parametrize("node", MADE, ids=repr)
def test_only_floats_are_made_of_floats(node):
    assert reads_places(as_floats(times_slope(node)))
    assert not reads_places(as_floats(Node("input", (node,), "table")))
    assert not reads_places(as_floats(of("<", node, number(5), kind="bool")))
    assert reads_places(as_floats(of("<", node, SCORE, kind="bool")))


@pytest.mark.parametrize(
    "node",
    [
        Q,
        number(3),
        of("-", APART, ROOM),
        of("+", of("*", number(2), Q), K),
        of("%", APART, number(4)),
        of("//", APART, number(4)),
        of("+", APART, number(2**23)),
        of("+", FAR, FAR),
        of("*", of("*", APART, APART), number(3)),
        of("**", APART, number(3)),
        of("*", number(-2), APART),
    ],
    ids=repr,
)
def test_what_floats_might_round_or_do_not_make_faster_stays_whole(node):
    assert as_floats(node) == node


CONDITIONS = [
    *(of(op, K, Q, kind="bool") for op in ("<", "<=", ">", ">=", "==", "!=")),
    *(of(op, Q, of("+", K, number(3)), kind="bool") for op in ("<", "<=", ">", ">=", "==", "!=")),
    of("<", of("-", Q, of("+", K, ROOM)), number(2), kind="bool"),
    of(">", of("+", K, ROOM), of("-", Q, number(2)), kind="bool"),
    of("==", of("%", of("-", of("+", Q, number(1)), K), number(4)), number(0), kind="bool"),
    of("<=", FAR, number(3), kind="bool"),
    of("and", of("<=", K, Q, kind="bool"), of("<", APART, ROOM, kind="bool"), kind="bool"),
    of("or", of("<=", K, Q, kind="bool"), of("<", K, number(4), kind="bool"), kind="bool"),
]


@pytest.mark.parametrize("node", CONDITIONS, ids=repr)
def test_conditions_are_the_same_by_distance(node):
    found = as_one(node)
    assert DISTANCE in found.walk()
    for q in range(-2, 9):
        for k in range(9):
            env = {"q": q, "k": k, "room": 3}
            assert evaluate(found, env | {"distance": q - k}) == evaluate(node, env)


@pytest.mark.parametrize(
    "node",
    [
        of("<", K, number(4), kind="bool"),
        of("<=", of("//", K, number(4)), of("//", Q, number(4)), kind="bool"),
        of("<", of("+", Q, K), number(9), kind="bool"),
        of("<", of("*", number(2), Q), K, kind="bool"),
        of("<", SLOPE, SCORE, kind="bool"),
    ],
    ids=repr,
)
def test_other_conditions_stay_as_they_are(node):
    assert as_one(node) == node


@pytest.mark.parametrize(
    "condition",
    [
        of("<=", K, Q, kind="bool"),
        of("<", K, of("+", Q, number(3)), kind="bool"),
        of("<", APART, number(5), kind="bool"),
        of(">=", number(2**23), APART, kind="bool"),
    ],
    ids=repr,
)
@pytest.mark.parametrize(("q", "k"), PLACES)
def test_one_comparison_with_a_number_is_one_of_a_part(condition, q, k):
    found = in_parts(as_one(condition))
    assert found and found.args[0].value == "near" and DISTANCE not in found.walk()
    assert evaluate(found, {"near": 57, "far": 57 - (q - k)}) == evaluate(condition, {"q": q, "k": k})


@pytest.mark.parametrize(
    "condition",
    [
        of("and", of("<=", K, Q, kind="bool"), of("<", APART, number(5), kind="bool"), kind="bool"),
        of("<", APART, ROOM, kind="bool"),
        of("<", APART, number(2**31 - 1), kind="bool"),
        of("<", FAR, number(5), kind="bool"),
        of("==", APART, number(5), kind="bool"),
    ],
    ids=repr,
)
def test_other_comparisons_stay(condition):
    assert in_parts(as_one(condition)) is None
