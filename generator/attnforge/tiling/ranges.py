"""Derives from a mask's expression, for both directions, which tiles are empty, full or mixed.

The mask is brought into a disjunction of conjunctions of integer inequalities; each conjunction bounds the sought
variable by the extremes that the other side takes over its tile. A condition that cannot be resolved bounds nothing
and lets no tile be full, so a span may be too wide, but it never misses a visible pair or calls a hidden one visible.

Positions, scalars and runtime options are assumed to lie within +-2**28; a bound that could exceed 2**63 is dropped.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..expressions.linear_forms import Linear, Tile, atom, ceil_divided, floor_divided, linear, variable
from ..expressions.tree import Node
from ..expressions.whole_numbers import LONG, Ranges
from .normal_form import TRUE, AtMostZero, Conjunction, Holds, Normal


@dataclass(frozen=True)
class Span:
    """Positions [lo, hi) that some position of the other side's tile sees, and [full_lo, full_hi) that every one sees.

    None means unbounded on that side. If `can_be_full` is False, no tile of this span may skip the mask. If it is
    `exact`, then for a tile of one position it contains only positions that this position sees.
    """

    lo: Node | None
    hi: Node | None
    full_lo: Node | None
    full_hi: Node | None
    can_be_full: bool
    exact: bool = field(default=False, compare=False)


def spans(
    mask: Node | None,
    along: Literal["k", "q"],
    inputs: Mapping[str, tuple[str, ...]] | None = None,
    minimums: Mapping[str, float] | None = None,
) -> tuple[Span, ...]:
    """The spans of `along` that a tile of the other side needs, over `q_first`, `q_last` or `k_first`, `k_last`.

    `inputs` gives the axes of the inputs by name, `minimums` the least values of the call's numbers by keyword: without
    them, an input is assumed to vary, a number to have either sign. The `lo` never decrease from span to span.
    """
    tile = Tile(along, inputs or {}, minimums or {})
    normal = Normal(tile).disjunction(mask, True) if mask is not None else TRUE
    found = [_Range.of(tile, conjunction) for conjunction in normal]
    return tuple(r.span() for r in _ordered(found)) or (Span(None, _natural(along)[0].node(), None, None, False),)


def _natural(along: str) -> tuple[Linear, Linear]:
    """The first position of a side, and the one past its last."""
    return (Linear() if along == "k" else atom(variable("q_begin"))), atom(variable("k_len"))


def _where(condition: Node, a: Linear, b: Linear) -> Linear:
    return a if a == b else atom(Node("where", (condition, a.node(), b.node()), type="int"))


@dataclass(frozen=True)
class _Interval:
    """Positions [lo, hi), or none if `when` does not hold."""

    tile: Tile
    lo: Linear | None
    hi: Linear | None
    when: Node | None = None

    def plain(self) -> _Interval:
        """The interval without `when`, which becomes part of `hi`."""
        if self.when is None:
            return self
        first, past = _natural(self.tile.sought)
        return _Interval(self.tile, self.lo, _where(self.when, self.hi or past, first))

    def around(self, other: _Interval) -> _Interval:
        """The smallest interval around the positions of both, whether or not the conditions hold."""
        lo = None if self.lo is None or other.lo is None else self.tile.least([self.lo, other.lo])
        hi = None if self.hi is None or other.hi is None else self.tile.greatest([self.hi, other.hi])
        return _Interval(self.tile, lo, hi, self.when if self.when == other.when else None)

    def contains(self, other: _Interval) -> bool:
        """True if it provably holds all of the other's positions, both conditions aside."""
        both = self.around(other)
        return (both.lo, both.hi) == (self.lo, self.hi)

    def union(self, other: _Interval) -> _Interval | None:
        """Exactly the positions of both, if they are provably one interval."""
        for a, b in ((self, other), (other, self)):
            if a.contains(b):
                return a if a.when is None or a.when == b.when else a._instead_of(b.plain())
        a, b = (self, other) if self.when == other.when else (self.plain(), other.plain())
        return a.around(b) if a.lo == b.lo or a.hi == b.hi else None

    def _instead_of(self, other: _Interval) -> _Interval:
        """This one if its condition holds, otherwise the other."""
        assert self.when is not None
        first, past = _natural(self.tile.sought)
        lo = None if self.lo is other.lo is None else _where(self.when, self.lo or first, other.lo or first)
        hi = None if self.hi is other.hi is None else _where(self.when, self.hi or past, other.hi or past)
        return _Interval(self.tile, lo, hi)

    def below(self, other: _Interval) -> bool:
        """True if it provably starts no later than the other."""
        return self.lo is None or (other.lo is not None and self.tile.at_most(self.lo, other.lo))

    def motion(self) -> int:
        """The number of ends that depend on the tile."""
        tile = {f"{self.tile.other}_first", f"{self.tile.other}_last"}
        ends = [end.node() for end in (self.lo, self.hi) if end is not None]
        return sum(any(node.value in tile for node in end.walk()) for end in ends)


@dataclass(frozen=True)
class _Range:
    """A span under construction: the positions that some position sees, and those that all see, if they are known."""

    seen: _Interval
    full: _Interval | None
    exact: bool = False

    @staticmethod
    def of(tile: Tile, conjunction: Conjunction) -> _Range:
        """The range of the sought variable under a conjunction."""
        seen, full = _Bounds(tile), _Bounds(tile)
        sought, can_be_full, exact = variable(tile.sought), True, True
        literals = sorted(conjunction, key=repr)
        forms = [literal.form for literal in literals if isinstance(literal, AtMostZero)]
        # A position of the tile for which the conjunction never holds need not widen the other bounds.
        clipped, held = tile.clipped(forms), Ranges(tile.limits)
        for literal in literals:
            if isinstance(literal, Holds):
                seen.conditions.append(literal.node)
                full.conditions.append(literal.node)
            elif (
                isinstance(literal, AtMostZero)
                and (ends := tile.extremes(rest := literal.form.without(sought)))
                and all(_computable(end, held) for end in ends)
            ):
                factor = literal.form.factor(sought)
                least = clipped.extremes(rest) if factor else ends
                seen.add(factor, least[0] if least and _computable(least[0], held) else ends[0])
                full.add(factor, ends[1])
                exact &= _of_one_position(ends[0], tile) == _of_one_position(ends[1], tile)
            else:
                can_be_full = exact = False
        return _Range(seen.interval(), full.interval() if can_be_full else None, exact)

    def span(self) -> Span:
        """The span in the form that users of this module get."""
        seen, full = self.seen.plain(), self.full and self.full.plain()
        ends = (seen.lo, seen.hi, full.lo, full.hi) if full else (seen.lo, seen.hi, None, None)
        lo, hi, full_lo, full_hi = (None if end is None else end.node() for end in ends)
        return Span(lo, hi, full_lo, full_hi, full is not None, self.exact)

    def hull(self, other: _Range) -> _Range:
        """One range around both."""
        return _Range(self.seen.plain().around(other.seen.plain()), self._fuller(other))

    def union(self, other: _Range) -> _Range | None:
        """One range of exactly the positions of both, if there is one."""
        seen = self.seen.union(other.seen)
        return None if seen is None else _Range(seen, self._fuller(other), self.exact and other.exact)

    def _fuller(self, other: _Range) -> _Interval | None:
        if self.full is None or other.full is None:
            return self.full or other.full
        # If one interval cannot represent both, the one that moves with the tile is the longer one on most tiles.
        longer = self.full if self.full.motion() > other.full.motion() else other.full
        return self.full.union(other.full) or longer


def _computable(form: Linear, ranges: Ranges) -> bool:
    """True if int64 holds all intermediate results of a form, in whatever order its terms are added."""
    most = abs(form.constant) + sum(abs(factor) * max(map(abs, ranges.of(part))) for part, factor in form.terms)
    parts = (node for part, _ in form.terms for node in part.walk() if node.type == "int")
    return most <= LONG and all(ranges.within(node, LONG) for node in parts)


def _of_one_position(end: Linear, tile: Tile) -> Linear:
    """An end for a tile of one position, which is its first and its last."""

    last, first = (variable(f"{tile.other}_{which}") for which in ("last", "first"))
    return linear(end.node().replaced(lambda node: first if node == last else None))


def _at_most_zero(form: Linear) -> Node:
    """The inequality form <= 0 as one would write it."""
    left = Linear(tuple(term for term in form.terms if term[1] > 0))
    right = left - form
    if not left.terms:
        left, right, op = right + form.constant, Linear((), form.constant), ">="
    elif right.terms and form.constant <= 0:
        op = "<="
    else:
        right, op = right + 1, "<"
    return Node(op, (left.node(), right.node()), type="bool")


class _Bounds:
    """Collects the inequalities of one conjunction."""

    def __init__(self, tile: Tile) -> None:
        self._tile = tile
        self._los: list[Linear] = []
        self._his: list[Linear] = []
        self.conditions: list[Node] = []

    def add(self, factor: int, rest: Linear) -> None:
        """Adds the inequality factor * sought + rest <= 0."""
        if factor > 0:
            self._his.append(floor_divided(-rest, factor) + 1)
        elif factor < 0:
            self._los.append(ceil_divided(rest, -factor))
        elif not self._tile.at_most(rest, Linear()):
            self.conditions.append(_at_most_zero(rest))

    def interval(self) -> _Interval:
        """The positions that meet them all."""
        lo = self._tile.greatest(self._los) if self._los else None
        hi = self._tile.least(self._his) if self._his else None
        if not self.conditions:
            return _Interval(self._tile, lo, hi)
        when = functools.reduce(lambda a, b: Node("and", (a, b), type="bool"), dict.fromkeys(self.conditions))
        return _Interval(self._tile, lo, hi, when)


def _ordered(found: list[_Range]) -> list[_Range]:
    """The ranges sorted by their start; those that form one range, or that cannot be sorted, are merged."""
    ranges = list(found)
    while joined := _first_joined(ranges):
        ranges = joined
    ordered: list[_Range] = []
    while ranges:
        first = next((r for r in ranges if all(r.seen.below(other.seen) for other in ranges)), None)
        if first is None:
            return [*ordered, functools.reduce(_Range.hull, ranges)]
        ranges = [r for r in ranges if r is not first]
        ordered.append(first)
    return ordered


def _first_joined(ranges: list[_Range]) -> list[_Range] | None:
    """The ranges with one pair merged, exact unions first; None if no pair has to be."""
    pairs = list(itertools.combinations(ranges, 2))
    unordered = ((a, b) for a, b in pairs if not a.seen.below(b.seen) and not b.seen.below(a.seen))
    unions = ((a, b, a.union(b)) for a, b in pairs)
    for a, b, one in itertools.chain(unions, ((a, b, a.hull(b)) for a, b in unordered)):
        if one is not None:
            return [one if r is a else r for r in ranges if r is not b]
    return None
