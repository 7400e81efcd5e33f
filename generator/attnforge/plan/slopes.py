"""Scores that fall by the same number from key to key, such as those of linear biases."""

from __future__ import annotations

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
    terms = [[*term.score.summands()] for term in spec.scores]
    if any(parts.count((1, SCORE)) != 1 for parts in terms):
        return None  # norms limit a score, not a multiple of it
    more = [part for parts in terms for part in parts if part != (1, SCORE)]
    return _loss(*more[0], spec) if len(more) == 1 else None


def _loss(sign: int, part: Node, spec: Spec) -> Node | None:
    """The number by which a signed part of a sum falls with the distance, if it is a product with the distance."""
    if part.op != "*":
        return None
    for number, other in (part.args, part.args[::-1]):
        if is_number(number, spec) and (ahead := distance(other, spec)):
            return number if ahead * sign < 0 else Node("neg", (number,))
    return None
