"""Scores that fall by the same number from key to key, such as those of linear biases."""

from __future__ import annotations

from collections.abc import Iterator

from ..expressions.inputs import HEAD_AXES
from ..expressions.linear_forms import linear, variable
from ..expressions.tree import SCORE, Node
from ..language.spec import Spec
from .conditions import no_late_keys, shows_itself


def is_number(node: Node, spec: Spec) -> bool:
    """True if the node is a single number, or one number per head."""
    if node.op == "input":
        (given,) = (one for one in spec.inputs if one.name == node.value)
        return not node.args and {*HEAD_AXES}.issuperset(given.kinds)
    return node.op in ("num", "option")


def distance(node: Node, spec: Spec) -> int:
    """1 if the node is the distance by which a visible key precedes a query, -1 if it is the negative, else 0."""
    if node.op == "abs":
        return int(no_late_keys(spec) and distance(node.args[0], spec) != 0)
    if node.type != "int":
        return 0
    ahead = linear(variable("q")) - linear(variable("k"))
    return {ahead: 1, -ahead: -1}.get(linear(node), 0)


def falling(spec: Spec) -> Node | None:
    """The number that scores lose with each position before a query, if terms do nothing else to them.

    Only if each query sees its own key, and none after it: then all weights are 0 from some distance on. If it saw
    later keys, kernels might begin with some that have no weight, and bits would depend on whether these are visited.
    """
    itself = no_late_keys(spec) and all(shows_itself(mask.keep) for mask in spec.masks)
    if not itself or spec.latent or not spec.algorithm.by_query or any(given.scan for given in spec.inputs):
        return None
    found = [part for term in spec.scores for part in _products(term.score, spec)]
    return found[0] if len(found) == 1 else None


def _products(score: Node, spec: Spec, sign: int = 1) -> Iterator[Node | None]:
    """The numbers by which a term's products fall with the distance; None for anything else than such products."""
    if score == SCORE and sign == 1:
        return
    match score.op, score.args:
        case "+" | "-", (left, right):
            yield from _products(left, spec, sign)
            yield from _products(right, spec, sign if score.op == "+" else -sign)
        case "neg", (one,):
            yield from _products(one, spec, -sign)
        case "*", (left, right):
            for number, other in ((left, right), (right, left)):
                if is_number(number, spec) and (ahead := distance(other, spec)):
                    yield number if ahead * sign < 0 else Node("neg", (number,))
                    return
            yield None
        case _:
            yield None
