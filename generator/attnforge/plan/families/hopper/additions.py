"""What terms add to all scores of a query or of a key, in kernels for Hopper GPUs.

Forward, products of scores begin with what both add. What a query adds changes none of its weights: backward it is
taken from the LSE, a worker holds what its keys add, and a score costs one addition more than without terms. What both
add may learn: see sums.py. A slope times how far a key stands before a query is a float of each, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ....expressions.linear_forms import linear, variable
from ....expressions.tree import SCORE, Node
from ....language.patterns import hides_late_keys
from ...access import Access
from ...kernel_terms import KernelTerms
from ...sides import SIDES, Side
from ...statements import Bundle, Statement, needed, reads, targets
from .vectors import Vector

LEAST_SCALE = "1e-30"
"""The least scale that kernels get: what keys add over it is finite, unless it is larger than 3e8."""

LOG2, PRODUCTS = "LOG2E", "(1 / scale)"
"""What turns scores into log2 units, and into units of products of queries and keys."""


class _Part(NamedTuple):
    """What a term adds, or takes off, to all scores of a query or of a key."""

    sign: str
    side: Side
    text: str
    access: Access | None = None  # what reads it, if that is all it is


@dataclass(frozen=True)
class Added:
    """What all terms of a variant add up to: floats of its queries and of its keys."""

    parts: tuple[_Part, ...]

    @property
    def learns(self) -> bool:
        """True if all of it has a gradient that workers can sum up."""
        return all(part.access for part in self.parts)

    @property
    def kind(self) -> str:
        """The row of tiles.yaml that tells where it pays."""
        return "added" if self.learns else "distances"

    def of(self, side: Side, unit: str) -> str:
        """Text of what all scores of a query or of a key have in common."""
        (sign, first), *others = ((part.sign, part.text) for part in self.parts if part.side == side)
        return " ".join(
            (f"{sign}{first} * {unit}".removeprefix("+"), *(f"{sign} {text} * {unit}" for sign, text in others))
        )

    @property
    def begin(self) -> Vector:
        """What scores of each key of a tile begin with."""
        return Vector(Statement("k_added", self.of("k", PRODUCTS), shape="[BLOCK_N]"), "float")

    @property
    def of_queries(self) -> Statement:
        """What scores of each query of a worker begin with.

        It changes none of their weights, but what a key adds can be large where both together are small, and a sum that
        begins with something large keeps little of a small product.
        """
        return Statement("q_added", self.of("q", PRODUCTS), shape="[64]")

    def less(self, terms: KernelTerms, rows: Iterable[Statement]) -> tuple[Bundle | Statement, ...]:
        """The statements that take what a query has from its LSE, behind the tuple of what they read.

        They stand where `row` is known; `rows` tell the other names of a tile's rows.
        """
        added = Statement("lse", self.of("q", LOG2), "-=")
        known = (*(one for one in rows if one.target != "row"), *terms.loads("step"))
        made = (*needed(known, added.reads), added)
        return (Bundle("terms", terms.passed(reads(made), {*targets(made), "row"}), packs=False), *made)


def build(terms: KernelTerms) -> Added | None:
    """What terms add, if they do nothing else, masks read nothing of it, and each read that learns has one slope."""
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
    """What a term adds to the score: floats of rows, and numbers times how far a key stands before a query; else None.

    Such a distance is taken apart, and both positions counted from near the tile at hand, so that floats hold them.
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
    """The parts of a number times how far a key stands before a query; none if it is not that."""
    ahead = _distance(distance, terms) if _is_number(number, terms) else 0
    if not ahead:
        return ()
    near, other = "q_first" if terms.own == "q" else "k_start", "-" if sign == "+" else "+"
    signs: dict[Side, str] = {"q": sign, "k": other} if ahead > 0 else {"q": other, "k": sign}
    text = terms.text(number)
    return tuple(_Part(signs[side], side, f"{text} * ({side}_pos - {near}).to(tl.float32)") for side in SIDES)


def _is_number(node: Node, terms: KernelTerms) -> bool:
    """True if it is one float, or one of each head."""
    if node.op == "input":
        return terms.access(node).form == "value"
    return node.op in ("num", "option")


def _distance(node: Node, terms: KernelTerms) -> int:
    """1 if it is how far a visible key stands before a query; -1 if that is how far behind, 0 if it is neither."""
    if node.op == "abs":
        behind = any(hides_late_keys(mask.keep) for mask in terms.spec.masks)
        return int(behind and _distance(node.args[0], terms) != 0)
    if node.type != "int":
        return 0
    ahead = linear(variable("q")) - linear(variable("k"))
    return {ahead: 1, -ahead: -1}.get(linear(node), 0)
