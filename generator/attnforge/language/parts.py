"""The conditions under which ranks that share the tokens of sequences can each attend to a part of the queries."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from ..expressions import shifts
from ..expressions.inputs import ROW_AXES, Input
from ..expressions.tree import Node
from .layers import LayerTerms
from .rope import Rope

_POSITIONS = ("q", "k")


class Terms(Protocol):
    """The properties of a spec that concern positions."""

    @property
    def nodes(self) -> Collection[Node]: ...
    @property
    def inputs(self) -> Collection[Input]: ...
    @property
    def layers(self) -> LayerTerms: ...
    @property
    def rope(self) -> Rope | None: ...
    @property
    def packed(self) -> bool: ...
    @property
    def dropout(self) -> bool: ...


def refusals(spec: Terms) -> Iterator[str]:
    """Why attention of a part of the queries cannot be computed on its own."""
    if _reads(spec, "q_len"):
        yield "terms that read q_len would count the queries of one part"
    for name in dict.fromkeys(given.name for given, kind, _ in _indices(spec) if kind == "query"):
        yield f"{name} is read at other queries than a score's own, which another rank may have"
    if spec.packed and asks_places(spec):
        for why in needs_later_keys(spec):
            yield f"packed sequences have to end with a part's last query, but {why}"


def asks_places(spec: Terms) -> bool:
    """Whether the result depends on the positions of a part's queries."""
    at_both = any("token" in given.kinds for given in spec.inputs)
    return bool(spec.rope or spec.dropout or at_both or _reads(spec, "q"))


def needs_later_keys(spec: Terms) -> Iterator[str]:
    """Why keys after a part's last query cannot be left out."""
    if spec.layers.seen != "causal":
        yield "no mask such as causal hides all later keys"
    if spec.dropout:
        yield "dropout draws by positions"
    if _reads(spec, "k_len"):
        yield "terms that read k_len count all keys"
    for name in dict.fromkeys(given.name for given in spec.inputs if given.kinds.count("key") > 1):
        yield f"{name} has an entry for each pair of keys"
    for given, kind, index in _indices(spec):
        if kind != "query" and not (index.op == "var" and index.value in _POSITIONS):
            yield f"{given.name} is read at other positions than those of a score"


def early_keys(spec: Terms) -> int | None:
    """A number whose multiples of early keys can be left out without changing terms, if a mask hides these keys.

    Positions then start at a later key, and inputs along tokens lose the same rows. None if terms would change, or
    angles: the tables of packed sequences have a row for each position, and sequences start anywhere.
    """
    rows = {given.name: [given.kinds[place] in ROW_AXES for place in given.written] for given in spec.inputs}
    found = [shifts.period(_without_rows(root, rows)) for root in spec.nodes]
    known = [step for step in found if step is not None]
    step = math.lcm(*known)
    return None if len(known) < len(found) or (spec.packed and (spec.rope or step > 1)) else step


def _without_rows(node: Node, rows: Mapping[str, Sequence[bool]]) -> Node:
    """An expression without the indices of its inputs along tokens."""
    args = [_without_rows(arg, rows) for arg in node.args]
    if node.op == "input":
        args = [arg for arg, row in zip(args, rows[str(node.value)], strict=False) if not row]
    return replace(node, args=tuple(args))


def _reads(spec: Terms, name: str) -> bool:
    return any(node.op == "var" and node.value == name for root in spec.nodes for node in root.walk())


def _indices(spec: Terms) -> Iterator[tuple[Input, str, Node]]:
    """Each explicit index along tokens in the terms, with its input and the kind of its axis."""
    inputs = {given.name: given for given in spec.inputs}
    for node in (node for root in spec.nodes for node in root.walk() if node.op == "input"):
        given = inputs[str(node.value)]
        for place, index in zip(given.written, node.args, strict=False):
            if given.kinds[place] in ROW_AXES:
                yield given, given.kinds[place], index
