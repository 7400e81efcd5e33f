"""What terms add to all scores of a query or of a key, in the backward pass for Hopper GPUs.

The warp that loads takes what a query has from its LSE, and a worker holds what its keys have: a score costs one
addition more than without terms. What a key has may learn: each worker sums up its gradient on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...expressions.tree import SCORE, Node
from ..access import Access
from ..kernel_terms import KernelTerms
from ..sides import Side
from ..statements import Bundle, Statement, needed, reads, targets

_Part = tuple[str, Access]
"""The sign of what is added, and the access that reads it."""


@dataclass(frozen=True)
class Added:
    """What all terms of a variant add up to: floats of its queries and of its keys."""

    parts: tuple[_Part, ...]

    def of(self, side: Side) -> str:
        """Text of what all scores of a query or of a key have in common, in log2 units."""
        (sign, first), *others = ((sign, access.name) for sign, access in self.parts if access.side == side)
        return " ".join(
            (f"{sign}{first} * LOG2E".removeprefix("+"), *(f"{sign} {name} * LOG2E" for sign, name in others))
        )

    def less(self, terms: KernelTerms, rows: Iterable[Statement]) -> tuple[Bundle | Statement, ...]:
        """The statements that take what a query has from its LSE, behind the tuple of what they read.

        They stand where `row` is known; `rows` tell the other names of a tile's rows.
        """
        made = (*terms.loads("step"), Statement("lse", self.of("q"), "-="))
        made = (*needed([one for one in rows if one.target != "row"], reads(made)), *made)
        return (Bundle("terms", terms.passed(reads(made), {*targets(made), "row"}), packs=False), *made)


def build(terms: KernelTerms) -> Added | None:
    """What terms add, if they do nothing else; None beside a sink, as what a query has then changes weights, too."""
    found = [part for term in terms.spec.scores for part in _parts(term.score, terms)]
    parts = tuple(part for part in found if part is not None)
    vectors = all(access.form == "row" and access.input.dtype == "float" for _, access in parts)
    if not found or len(parts) < len(found) or not vectors or terms.spec.sink:
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
