"""A variant described for libraries with a fixed list of features: the few patterns that they have names for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..expressions.tree import Node
from ..language import patterns
from ..language.patterns import DISTANCE, SCORE, K, Number, Q
from ..language.spec import Spec


@dataclass(frozen=True)
class Traits:
    """Features by their names; `others` are the terms that no such library can express."""

    causal: bool = False
    window: Number | None = None  # keys that a query sees, its own included
    softcap: Number | None = None
    alibi: str | None = None  # the keyword of the slopes
    decay: str | None = None  # the keyword of the logarithms of the decays
    sink: bool = False
    dropout: bool = False
    packed: bool = False
    others: tuple[str, ...] = ()

    @property
    def features(self) -> dict[str, bool]:
        """All features by name, and whether the variant has them."""
        numbers = {name: getattr(self, name) is not None for name in ("window", "softcap", "alibi", "decay")}
        return numbers | {name: getattr(self, name) for name in ("causal", "sink", "dropout", "packed")}


def traits(spec: Spec) -> Traits:
    """The features of a variant."""
    found: dict[str, bool | Number] = {}
    others: list[str] = []
    for label, feature in (*_masks(spec), *_scores(spec)):
        if feature is None or feature[0] in found:
            others.append(label)
        else:
            found[feature[0]] = feature[1]
    return Traits(
        **found,  # type: ignore[arg-type]
        sink=spec.sink,
        dropout=spec.dropout,
        packed=spec.packed,
        others=tuple(dict.fromkeys(others)),
    )


Feature = tuple[str, bool | Number]


def _masks(spec: Spec) -> Iterator[tuple[str, Feature | None]]:
    for mask in spec.masks:
        for part in patterns.joined(mask.keep):
            yield mask.label, _mask(part)


def _mask(part: Node) -> Feature | None:
    if patterns.causal(part):
        return "causal", True
    size = patterns.window(part)
    return None if size is None else ("window", size)


def _scores(spec: Spec) -> Iterator[tuple[str, Feature | None]]:
    for i, term in enumerate(spec.scores):
        # a library that supports two of them applies them in an order of its own
        yield term.label, _score(term.score, spec) if not i else None


def _score(score: Node, spec: Spec) -> Feature | None:
    inputs = {given.name: given for given in spec.inputs}
    leaves = {str(n.value): inputs[str(n.value)] for n in score.walk() if n.op == "input"}
    if (size := patterns.softcap(score)) is not None:
        return "softcap", size
    if len(leaves) != 1:
        return None
    ((name, given),) = leaves.items()
    slope = Node("input", (), name)
    if given.kinds == ("head",) and score == Node(
        "-", (SCORE, Node("*", (slope, Node("abs", (DISTANCE,), None, "int"))))
    ):
        return "alibi", name
    at_q, at_k = (Node("input", (place,), name) for place in (Q, K))
    if given.scan and score == Node("+", (SCORE, Node("-", (at_q, at_k)))):
        return "decay", name
    return None
