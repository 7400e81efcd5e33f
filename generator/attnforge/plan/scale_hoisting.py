"""Constant factors of the score in the first score term, and of the result in the last; kernels apply them elsewhere.

The first goes into the scale of the scores, the second into the factor that turns them into log2 units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..expressions.tree import SCORE, Node


class Factored(NamedTuple):
    """Score terms without their outermost factors."""

    scores: tuple[Node, ...]
    inner: tuple[str, float] = ("*", 1.0)  # by which the first term's score is multiplied or divided
    outer: float = 1.0  # by which the last term's value is multiplied

    @property
    def both(self) -> float:
        """The factor that the two contribute to a gradient of the score."""
        op, number = self.inner
        return self.outer * number if op == "*" else self.outer / number


def factored(scores: Sequence[Node]) -> Factored:
    """The terms without the factors that can be applied elsewhere, and these factors."""
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
    """All ways in which an expression scales the score before it does anything else; None for an unscaled score."""
    if way := _way(node):
        return frozenset({way})
    return frozenset({None}) if node == SCORE else frozenset[tuple[str, float] | None]().union(*map(_ways, node.args))


def _bare(node: Node) -> Node:
    """The expression for a score that is scaled already."""
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
    """The value of a positive number that takes no float out of its range, if the node is one."""
    if node.op != "num" or isinstance(node.value, bool | str) or node.value is None:
        return None
    value = float(node.value)
    return value if math.isfinite(value) and 2.0**-20 < value < 2.0**20 else None
