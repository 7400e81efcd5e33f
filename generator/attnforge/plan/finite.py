"""Whether values and derivatives are certain to be finite for all finite q and k, and how others are kept harmless."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ..expressions.functions import FUNCTIONS
from ..expressions.inputs import Input
from ..expressions.tree import SCORE, Node
from ..printing import printers

_LARGE = 1e38
_ZERO = Node("num", (), 0.0)
_PLAIN = {"+", "-", "*", "neg"}
_SAFE = printers.LEAVES | {"num", "+", "-", "neg"}


def wild(terms: Iterable[Node], inputs: dict[str, Input]) -> bool:
    """True if a derivative of any of these terms may be infinite or NaN where a mask hides the score.

    Each term takes the score that those before it have computed, which may be infinite or NaN there, too. If any
    derivative may, the reference masks the terms' inputs, as 0 times such a derivative is NaN.
    """
    score = True
    for term in terms:
        if not tame(term, inputs, score):
            return True
        score = is_finite(term, score)
    return False


def tame(node: Node, inputs: dict[str, Input], score: bool = True) -> bool:
    """True if no derivative can be infinite or NaN; `score` says whether the score is certain to be finite."""
    if not _learns(node, inputs):
        return True
    args = node.args
    if node.op == "*":
        others = zip(args, reversed(args), strict=True)
        return all(tame(a, inputs, score) and (is_finite(b, score) or not _learns(a, inputs)) for a, b in others)
    if node.op == "/":
        return tame(args[0], inputs, score) and args[1].op == "num" and args[1].value != 0
    if node.op == "where":
        return all(tame(a, inputs, score) for a in args[1:])
    if (function := FUNCTIONS.get(node.op)) and function.kind == "smooth":
        return function.finite and tame(args[0], inputs, score) and is_finite(args[0], score)
    return (function or node.op in _SAFE) and all(tame(a, inputs, score) for a in args)


def sheltered(node: Node, inputs: dict[str, Input]) -> Node:
    """The node with unchosen operands kept from gradients: 0 times an infinite derivative would be NaN."""
    args = tuple(sheltered(arg, inputs) for arg in node.args)
    if node.op == "where" and not printers.is_scalar(args[0]):
        condition, *others = args
        steep = [not tame(arg, inputs) for arg in node.args[1:]]
        chosen = [_only(condition, x, i, inputs) if steep[i] else x for i, x in enumerate(others)]
        args = (condition, *chosen)
    return dataclasses.replace(node, args=args)


def _only(condition: Node, node: Node, place: int, inputs: dict[str, Input]) -> Node:
    """The node with 0 for all that gets gradients, wherever the condition chooses the other of two operands."""

    def chosen(n: Node) -> Node | None:
        if n == SCORE or (n.op == "input" and inputs[str(n.value)].grad):
            return Node("where", (condition, *((n, _ZERO) if place == 0 else (_ZERO, n))), None, "float")
        return n if n.op == "input" else None

    return node.replaced(chosen)


def _learns(node: Node, inputs: dict[str, Input]) -> bool:
    return any(n == SCORE or (n.op == "input" and inputs[str(n.value)].grad) for n in node.walk())


def is_finite(node: Node, score: bool = True) -> bool:
    """True if a value is certain to be finite for finite q and k, also in log2 units; `score`: whether the score is."""
    if node.op == "num":
        return abs(float(node.value or 0)) < _LARGE
    if node.op in ("var", "option"):
        return score or node != SCORE
    if node.op == "/":
        return is_finite(node.args[0], score) and node.args[1].op == "num" and node.args[1].value != 0
    function = FUNCTIONS.get(node.op)
    return (function.finite if function else node.op in _PLAIN) and all(is_finite(a, score) for a in node.args)
