"""Addends that terms contribute to all scores of a query or of a key, in kernels for Hopper GPUs.

In the forward pass the accumulator of a score product starts from the addends of query and key. A query's addend
changes none of its weights: the backward pass subtracts it from the LSE, a worker holds the addends of its keys, and a
score costs one addition more than without terms. Both addends may be learned: see sums.py. A slope times the distance
from key to query is also the sum of one float per query and one per key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ....expressions.tree import SCORE, Node
from ... import slopes
from ...access import Access
from ...kernel_terms import KernelTerms
from ...sides import SIDES, Side
from ...statements import Bundle, Statement, needed, reads, targets
from .vectors import Vector

LEAST_SCALE = "1e-30"
"""The least scale that kernels get: a key's addend divided by it is finite, unless the addend is larger than 3e8."""

LOG2, PRODUCTS = "LOG2E", "(1 / scale)"
"""Factors that convert scores to log2 units, and to the units of query-key products."""


class _Part(NamedTuple):
    """A float that a term adds to, or subtracts from, all scores of a query or of a key."""

    sign: str
    side: Side
    text: str
    access: Access | None = None  # the access that reads it, if it is nothing but an input's value


@dataclass(frozen=True)
class Added:
    """The sum of all terms of a variant: one float per query and one per key."""

    parts: tuple[_Part, ...]

    @property
    def learns(self) -> bool:
        """True if each part has a gradient that workers can sum up."""
        return all(part.access for part in self.parts)

    @property
    def kind(self) -> str:
        """The row of tiles.yaml that says when this pays off."""
        return "added" if self.learns else "distances"

    def of(self, side: Side, unit: str) -> str:
        """Text of the addend that all scores of a query or of a key share, in a unit."""
        (sign, first), *others = ((part.sign, part.text) for part in self.parts if part.side == side)
        return " ".join(
            (f"{sign}{first} * {unit}".removeprefix("+"), *(f"{sign} {text} * {unit}" for sign, text in others))
        )

    @property
    def begin(self) -> Vector:
        """The addend of each key of a tile, where its scores start."""
        return Vector(Statement("k_added", self.of("k", PRODUCTS), shape="[BLOCK_N]"), "float")

    @property
    def of_queries(self) -> Statement:
        """The addend of each query of a worker, where its scores start.

        It changes none of their weights, but a key's addend can be large where the sum of both is small, and an
        accumulator that starts from a large number keeps few digits of a small product.
        """
        return Statement("q_added", self.of("q", PRODUCTS), shape="[64]")

    def less(self, terms: KernelTerms, rows: Iterable[Statement]) -> tuple[Bundle | Statement, ...]:
        """The statements that subtract a query's addend from its LSE, after the tuple of the names they read.

        They go where `row` is known; `rows` define the other names of a tile's rows.
        """
        added = Statement("lse", self.of("q", LOG2), "-=")
        known = (*(one for one in rows if one.target != "row"), *terms.loads("step"))
        made = (*needed(known, added.reads), added)
        return (Bundle("terms", terms.passed(reads(made), {*targets(made), "row"}), packs=False), *made)


def build(terms: KernelTerms) -> Added | None:
    """The addends, if terms do nothing but add, masks read none of it, and each learned read has a single slope."""
    found = [part for term in terms.spec.scores for part in _parts(term.score, terms)]
    parts = tuple(part for part in found if part is not None)
    read = [part.access for part in parts if part.access]
    vectors = all(access.form == "row" and access.input.dtype == "float" for access in read)
    alone = all(kind == "score" for access in read for kind, _ in terms.readers(access))
    once = all(sum(node == SCORE for node in term.score.walk()) == 1 for term in terms.spec.scores)
    learned = [(access.input, access.side) for access in read if access.input.grad]
    single = len(set(learned)) == len(learned)
    if not found or len(parts) < len(found) or not (vectors and alone and once and single):
        return None
    return Added(parts) if {part.side for part in parts} == {"q", "k"} else None


def _parts(score: Node, terms: KernelTerms, sign: str = "+") -> Iterator[_Part | None]:
    """The parts of a term: floats of rows, and numbers times the distance from key to query; None for anything else.

    A distance is split into its two positions, both counted from near the current tile, so that floats represent them.
    """
    if score == SCORE and sign == "+":
        return
    other = "-" if sign == "+" else "+"
    match score.op, score.args:
        case "+", (left, right):
            yield from (*_parts(left, terms, sign), *_parts(right, terms, sign))
        case "-", (left, right):
            yield from (*_parts(left, terms, sign), *_parts(right, terms, other))
        case "neg", (one,):
            yield from _parts(one, terms, other)
        case "input", _:
            access = terms.access(score)
            yield _Part(sign, access.side, access.name, access) if access.side else None
        case "*", (left, right):
            yield from _by_distance(left, right, terms, sign) or _by_distance(right, left, terms, sign) or (None,)
        case _:
            yield None


def _by_distance(number: Node, distance: Node, terms: KernelTerms, sign: str) -> tuple[_Part, ...]:
    """The parts of a number times the distance from key to query; none if the product is something else."""
    ahead = slopes.distance(distance, terms.spec) if slopes.is_number(number, terms.spec) else 0
    if not ahead:
        return ()
    near, other = "q_first" if terms.own == "q" else "k_start", "-" if sign == "+" else "+"
    signs: dict[Side, str] = {"q": sign, "k": other} if ahead > 0 else {"q": other, "k": sign}
    text = terms.text(number)
    return tuple(_Part(signs[side], side, f"{text} * ({side}_pos - {near}).to(tl.float32)") for side in SIDES)
