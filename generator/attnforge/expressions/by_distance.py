"""Parts of an expression that depend on positions only by the distance from key to query."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from .distances import DISTANCE
from .linear_forms import Linear, atom, linear, variable
from .tree import COMPARISONS, SCORE, Node

_OF_HEADS = ("h", "kv_h")
_Q, _K = variable("q"), variable("k")


def parts(node: Node, known: Callable[[Node], bool]) -> Iterator[Node]:
    """The largest floats in an expression that have a value for each distance of each head.

    `known` says whether an input has the same values in all calls of a head.
    """
    if node.type == "float" and node != SCORE and _by_distance(node, known):
        yield node
    elif node.op != "input":
        for arg in node.args:
            yield from parts(arg, known)


def _by_distance(node: Node, known: Callable[[Node], bool]) -> bool:
    shared = all(known(n) for n in node.walk() if n.op == "input")
    read = {n.value for n in at_distance(node).walk() if n.op in ("var", "local")}
    return shared and DISTANCE.value in read and read <= {DISTANCE.value, *_OF_HEADS}


def at_distance(node: Node) -> Node:
    """An expression with `distance` in place of differences of positions; a part has no other positions left."""
    return node.replaced(_at_distance)


def _at_distance(node: Node) -> Node | None:
    if node.op in COMPARISONS and {arg.type for arg in node.args} == {"int"}:
        left, right = node.args
        times, rest = _apart(linear(left) - linear(right))
        if times:
            return dataclasses.replace(node, args=((atom(DISTANCE) * times).node(), at_distance((-rest).node())))
    if node.type == "int":
        times, rest = _apart(linear(node))
        if times:
            return (atom(DISTANCE) * times + linear(at_distance(rest.node()))).node()
    return None


def _apart(form: Linear) -> tuple[int, Linear]:
    """How often a sum contains the distance, if it contains positions in no other way, and what else it contains."""
    times = form.factor(_Q)
    return (times, form.without(_Q).without(_K)) if times == -form.factor(_K) else (0, form)
