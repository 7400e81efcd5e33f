"""What terms add to all scores of a query or of a key, in kernels for Hopper GPUs.

What a query adds changes none of its weights: it is a matter of the LSE alone. Forward, products of scores begin with
what keys add. Backward a worker holds what its keys add, and a score costs one addition more than without terms. What
a key adds may learn: each worker sums up its gradient on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...expressions.tree import SCORE, Node
from ..access import Access
from ..kernel_terms import KernelTerms
from ..sides import Side
from ..statements import Bundle, Statement, needed, reads, targets
from .hopper_vectors import Vector

LEAST_SCALE = "1e-30"
"""The least scale that kernels get: what keys add over it is finite, unless it is larger than 3e8."""

LOG2, PRODUCTS = "LOG2E", "(1 / scale)"
"""What turns scores into log2 units, and into units of products of queries and keys."""

_Part = tuple[str, Access]
"""The sign of what is added, and the access that reads it."""


@dataclass(frozen=True)
class Added:
    """What all terms of a variant add up to: floats of its queries and of its keys."""

    parts: tuple[_Part, ...]

    def of(self, side: Side, unit: str) -> str:
        """Text of what all scores of a query or of a key have in common."""
        (sign, first), *others = ((sign, access.name) for sign, access in self.parts if access.side == side)
        return " ".join(
            (f"{sign}{first} * {unit}".removeprefix("+"), *(f"{sign} {name} * {unit}" for sign, name in others))
        )

    @property
    def begin(self) -> Vector:
        """What scores of each key of a tile begin with."""
        return Vector(Statement("k_added", self.of("k", PRODUCTS), shape="[BLOCK_N]"), "float")

    @property
    def raised(self) -> tuple[Statement, ...]:
        """What a query adds to its LSE: it changes no weight, but -inf leaves none, and what is no number NaN."""
        none = '(l == 0) | (q_added == float("-inf"))'
        return (
            Statement("q_added", self.of("q", LOG2), shape="[64]"),
            Statement("l", f"tl.where({none}, 0.0, l + (q_added - q_added))", label="NaN stays NaN", shape="[64]"),
        )

    def less(self, terms: KernelTerms, rows: Iterable[Statement]) -> tuple[Bundle | Statement, ...]:
        """The statements that take what a query has from its LSE, behind the tuple of what they read.

        They stand where `row` is known; `rows` tell the other names of a tile's rows.
        """
        made = (*terms.loads("step"), Statement("lse", self.of("q", LOG2), "-="))
        made = (*needed([one for one in rows if one.target != "row"], reads(made)), *made)
        return (Bundle("terms", terms.passed(reads(made), {*targets(made), "row"}), packs=False), *made)


def build(terms: KernelTerms) -> Added | None:
    """What terms add, if they do nothing else, and masks read nothing of it.

    None beside a sink, as what a query adds then changes weights, too.
    """
    found = [part for term in terms.spec.scores for part in _parts(term.score, terms)]
    parts = tuple(part for part in found if part is not None)
    vectors = all(access.form == "row" and access.input.dtype == "float" for _, access in parts)
    alone = all(kind == "score" for _, access in parts for kind, _ in terms.readers(access))
    once = all(sum(node == SCORE for node in term.score.walk()) == 1 for term in terms.spec.scores)
    if not found or len(parts) < len(found) or not (vectors and alone and once) or terms.spec.sink:
        return None
    return Added(parts) if {access.side for _, access in parts} == {"q", "k"} else None


def _parts(score: Node, terms: KernelTerms, sign: str = "+") -> Iterator[_Part | None]:
    """What a term adds to the score; None for all but floats of rows."""
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
            yield sign, terms.access(score)
        case _:
            yield None


def begun(total: str) -> Statement:
    """The statement that begins a sum over the queries of each of a worker's keys."""
    value = "gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, SCORES))"
    return Statement(total, value, shape="[64]")
