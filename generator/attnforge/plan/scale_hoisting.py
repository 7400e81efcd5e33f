"""Numbers that the first score term takes the score times, and the last one its result; kernels have places for them.

The first goes into the scale of the scores, the second into what turns them into log2 units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..expressions.tree import SCORE, Node


class Factored(NamedTuple):
    """Score terms without their outermost numbers."""

    scores: tuple[Node, ...]
    inner: tuple[str, float] = ("*", 1.0)  # what the first one's score is multiplied or divided by
    outer: float = 1.0  # what the last one's value is multiplied by

    @property
    def both(self) -> float:
        """The factor of a gradient of the score on its way through the two."""
        op, number = self.inner
        return self.outer * number if op == "*" else self.outer / number


def factored(scores: Sequence[Node]) -> Factored:
    """The terms, and the numbers that they can do without."""
    if not scores:
        return Factored(())
    found = list(scores)
    ways = _ways(found[0])
    inner = next(iter(ways)) if len(ways) == 1 else None
    if inner:
        found[0] = _bare(found[0])
    outer, found[-1] = _outer(found[-1])
    return Factored(tuple(found), inner or ("*", 1.0), outer)


def _way(node: Node) -> tuple[str, float] | None:
    """The factor by which a node scales the score, if it does nothing else."""
    if node.op not in ("*", "/") or SCORE not in node.args:
        return None
    score, number = node.args if node.args[0] == SCORE or node.op == "/" else node.args[::-1]
    value = _positive(number)
    return (node.op, value) if score == SCORE and value else None


def _ways(node: Node) -> frozenset[tuple[str, float] | None]:
    """All ways in which an expression scales the score before it does anything else; None for as it is."""
    if way := _way(node):
        return frozenset({way})
    return frozenset({None}) if node == SCORE else frozenset[tuple[str, float] | None]().union(*map(_ways, node.args))


def _bare(node: Node) -> Node:
    """The expression of a score that is scaled already."""
    if _way(node):
        return SCORE
    return Node(node.op, tuple(map(_bare, node.args)), node.value, node.type, node.column)


def _outer(node: Node) -> tuple[float, Node]:
    """The outermost factor of an expression, and the rest."""
    if node.op == "*":
        for number, rest in (node.args, node.args[::-1]):
            value = _positive(number)
            if value and rest.type == "float":
                return value, rest
    return 1.0, node


def _positive(node: Node) -> float | None:
    """A positive number that takes no float out of its range."""
    if node.op != "num" or isinstance(node.value, bool | str) or node.value is None:
        return None
    value = float(node.value)
    return value if math.isfinite(value) and 2.0**-20 < value < 2.0**20 else None
