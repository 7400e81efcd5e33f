"""Gradients that a spec asks for and cannot get, because its scores are flat or do not read an input."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..expressions import calculus
from ..expressions.inputs import Input
from ..expressions.tree import Node
from ..source.errors import Problems
from ..source.located_yaml import Value


def check(scores: Sequence[tuple[Node, Value]], learned: Sequence[str], problems: Problems) -> None:
    """Reports scores that pass no gradient on to q and k, and learned inputs that no gradient reaches."""
    for node, text in scores:
        if stop := _stop(node, _reads(node, "score")):
            why = f"{_named(stop)} is flat: through this score no gradient reaches q and k"
            mend = "write it with a smooth function such as tanh, or without score"
            problems.add(text.place(stop.column), f"{why}; {mend}")
    for name in learned:
        stops = [(_stop(node, leaves), text) for node, text in scores if (leaves := _reads(node, name))]
        if stops and all(stop for stop, _ in stops):
            stop, text = stops[0]
            assert stop is not None
            why = f"{_named(stop)} is flat: {name} gets no gradient"
            problems.add(text.place(stop.column), f"{why}; set grad: false, or read it where the score slopes")


def check_masks(
    masks: Sequence[tuple[Node, Value]],
    scores: Sequence[tuple[Node, Value]],
    learned: Sequence[str],
    problems: Problems,
) -> None:
    """Reports learned inputs that only masks read."""
    for name in learned:
        if any(_reads(node, name) for node, _ in scores):
            continue
        for node, text in masks:
            for read in _reads(node, name):
                why = f"{name} has a gradient, but a mask has no slope"
                problems.add(text.place(read.column), f"{why}: set grad: false, or read it in a score, too")


def could_learn(given: Input, scores: Sequence[Node]) -> bool:
    """True if an input would get a gradient from some score if its spec asked for one."""
    if given.no_gradient:
        return False
    reads = {node: _reads(node, given.name) for node in scores}
    indexed = (pair for leaves in reads.values() for n in leaves for pair in zip(given.written, n.args, strict=True))
    if any(given.kinds[axis] == "token" and place.op != "var" for axis, place in indexed):
        return False
    return any(leaves and not _stop(node, leaves) for node, leaves in reads.items())


def _reads(node: Node, name: str) -> set[Node]:
    return {n for n in node.walk() if n.op in ("var", "input") and n.value == name}


def _stop(node: Node, leaves: Collection[Node]) -> Node | None:
    """The first flat part of a score that reads one of these leaves, if the score's slopes by all of them are 0."""
    if not leaves or any(calculus.simplify(calculus.derivative(node, leaf)).value != 0 for leaf in leaves):
        return None
    flat = (n for n in node.walk() if n.op in calculus.FLAT and any(x in leaves for a in n.args for x in a.walk()))
    return next(flat, node)


def _named(stop: Node) -> str:
    """The name of a flat part in messages."""
    if stop.op in ("floor", "input"):
        return "floor(...)" if stop.op == "floor" else "an index"
    return f"`{stop.op}`" if stop.op in calculus.FLAT else "this expression"
