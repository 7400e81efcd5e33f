"""How large a number can get, as far as its expression tells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from .constants import OPERATIONS
from .expression import SCORE, Node

Interval = tuple[float, float]
EVERYTHING: Interval = (-math.inf, math.inf)
_RANGES: dict[str, Interval] = {
    "tanh": (-1, 1),
    "sigmoid": (0, 1),
    "sin": (-1, 1),
    "cos": (-1, 1),
    "exp": (0, math.inf),
}
_EXTREME_AT_ENDS = ("neg", "min", "max", "+", "-", "*", "tanh", "sigmoid", "exp")


def largest(scores: Sequence[Node]) -> float:
    """The largest size that a score can have after all terms; infinite where nothing keeps it small."""
    found = EVERYTHING
    for term in scores:
        found = interval(term, found)
    return max(map(abs, found))


def interval(node: Node, score: Interval) -> Interval:
    """Where an expression lies for scores in an interval; never too narrow, though at times too wide."""
    if node.op == "num" and isinstance(node.value, int | float):
        return node.value, node.value
    if node == SCORE:
        return score
    args = [interval(arg, score) for arg in node.args]
    if node.op == "where":
        return min(low for low, _ in args[1:]), max(high for _, high in args[1:])
    if node.op == "abs":
        (low, high) = args[0]
        return max(low, -high, 0), max(-low, high)
    finite = all(map(math.isfinite, itertools.chain(*args)))
    if node.op in _EXTREME_AT_ENDS and (finite or node.op in ("min", "max")):
        return _spread(node.op, args)
    if node.op == "/" and finite and not args[1][0] <= 0 <= args[1][1]:
        return _spread("/", args)
    return _RANGES.get(node.op, EVERYTHING)


def _spread(op: str, args: Sequence[Interval]) -> Interval:
    """Between the extremes at the ends of the operands."""
    try:
        found = [float(OPERATIONS[op](*ends)) for ends in itertools.product(*args)]
    except OverflowError:
        return _RANGES.get(op, EVERYTHING)
    return (min(found), max(found)) if not any(map(math.isnan, found)) else EVERYTHING
