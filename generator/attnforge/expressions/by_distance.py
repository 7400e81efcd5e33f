"""Parts of an expression that depend on positions only by the distance from key to query."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from .distances import DISTANCE
from .linear_forms import Linear, atom, linear, variable
from .shifts import period
from .tree import COMPARISONS, SCORE, Node

_OF_HEADS = ("h", "kv_h")


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
    leaves = [n for n in node.walk() if n.op in ("var", "local", "input")]
    read = {n.value for n in leaves if n.op != "input"}
    shared = all(known(n) for n in leaves if n.op == "input")
    if not (shared and {"q", "k"} <= read <= {"q", "k", *_OF_HEADS} and period(node) == 1):
        return False
    # positions may also cancel out in other ways, as in (2 * q + 1) // 2 - k
    return not {n.value for n in at_distance(node).walk() if n.op == "var"} & {"q", "k"}


def at_distance(node: Node) -> Node:
    """Such a part as an expression of `distance`."""
    if node.op in COMPARISONS and {arg.type for arg in node.args} == {"int"}:
        left, right = node.args
        form = linear(left) - linear(right)
        if times := form.factor(variable("q")):
            return dataclasses.replace(node, args=((atom(DISTANCE) * times).node(), at_distance((-_rest(form)).node())))
    if node.type == "int" and (times := (form := linear(node)).factor(variable("q"))):
        return (atom(DISTANCE) * times + linear(at_distance(_rest(form).node()))).node()
    return dataclasses.replace(node, args=tuple(map(at_distance, node.args)))


def _rest(form: Linear) -> Linear:
    """A sum without the terms of q and k, whose factors cancel."""
    return form.without(variable("q")).without(variable("k"))
