"""Integer expressions as linear forms: simplification, extremes over a tile, and provable inequalities.

Any part that is not a sum is an atom of the form. The proofs are one-sided: "not proved" does not mean "false".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from .folding import LARGEST
from .tree import Node

# axes along which a whole tile reads one entry; of a table, if its index has one value for the tile
_STILL = frozenset({"batch", "head", "kv_head", "size"})
_SCALARS = frozenset({"option", "input"})
_COUNTS = frozenset({"q_len", "k_len", "b", "h", "kv_h", "heads"})
_MARGIN = 2**29  # positions and scalars stay within 2**28, so no sum of two of them exceeds this


@dataclass(frozen=True)
class Linear:
    """Atoms with their integer factors, in a fixed order, plus a constant."""

    terms: tuple[tuple[Node, int], ...] = ()
    constant: int = 0

    @staticmethod
    def of(terms: Mapping[Node, int], constant: int) -> Linear:
        """The form of these terms, without those whose factor is 0."""
        kept = [(atom, factor) for atom, factor in terms.items() if factor]
        return Linear(tuple(sorted(kept, key=lambda term: _place(term[0]))), constant)

    def __add__(self, other: Linear | int) -> Linear:
        if isinstance(other, int):
            return Linear(self.terms, self.constant + other)
        if not self.terms or not other.terms:
            return Linear(self.terms or other.terms, self.constant + other.constant)
        terms = dict(self.terms)
        for atom, factor in other.terms:
            terms[atom] = terms.get(atom, 0) + factor
        return Linear.of(terms, self.constant + other.constant)

    def __mul__(self, factor: int) -> Linear:
        return Linear(tuple((atom, f * factor) for atom, f in self.terms) if factor else (), self.constant * factor)

    def __neg__(self) -> Linear:
        return self * -1

    def __sub__(self, other: Linear) -> Linear:
        return self + -other

    def without(self, atom: Node) -> Linear:
        """The form without the term of this atom."""
        return Linear(tuple(term for term in self.terms if term[0] != atom), self.constant)

    def factor(self, atom: Node) -> int:
        """The factor of this atom, 0 if it does not occur."""
        return dict(self.terms).get(atom, 0)

    def alone(self, *ops: str) -> Node | None:
        """The atom of a form `atom + constant`, if it is one of these operations."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and self.terms[0][0].op in ops:
            return self.terms[0][0]
        return None

    def node(self) -> Node:
        """The form as an expression, positive terms first, the constant last."""
        parts = [(1, _product(f, a)) for a, f in self.terms if f > 0]
        constant = self.constant
        if constant > 0 and not parts:
            parts, constant = [(1, number(constant))], 0
        parts += [(-1, _product(-f, a)) for a, f in self.terms if f < 0]
        if not parts:
            return number(constant)
        if constant:
            parts.append((1 if constant > 0 else -1, number(abs(constant))))
        sign, total = parts[0]
        total = total if sign > 0 else _int("neg", total)
        for sign, part in parts[1:]:
            total = _int("+" if sign > 0 else "-", total, part)
        return total


def number(value: int) -> Node:
    """An int literal."""
    return Node("num", value=value, type="int")


def variable(name: str) -> Node:
    """An int variable."""
    return Node("var", value=name, type="int")


def atom(node: Node) -> Linear:
    """The form that consists of this node alone."""
    return Linear(((node, 1),))


def _product(factor: int, part: Node) -> Node:
    return part if factor == 1 else _int("*", number(factor), part)


def _int(op: str, *args: Node) -> Node:
    return Node(op, args, type="int")


@functools.lru_cache(2**14)
def _place(node: Node) -> tuple[int, str]:
    """Sort key of an atom in a sum: positions, then expressions of positions, then scalars."""
    positions = any(n.op == "var" and str(n.value) not in _COUNTS for n in node.walk())
    return (0 if node.op == "var" and positions else 1 if positions else 2), _text(node)


def _text(node: Node) -> str:
    """Text that is the same for equal nodes only."""
    return f"{node.op} ({', '.join(map(_text, node.args))}) {node.value!r} {node.type}"


def linear(node: Node) -> Linear:
    """An int expression as a linear form."""
    match node.op:
        case "num" if isinstance(node.value, int):
            return Linear((), int(node.value))
        case "+":
            return linear(node.args[0]) + linear(node.args[1])
        case "-":
            return linear(node.args[0]) - linear(node.args[1])
        case "neg":
            return -linear(node.args[0])
        case "*":
            a, b = linear(node.args[0]), linear(node.args[1])
            if not a.terms or not b.terms:
                return b * a.constant if not a.terms else a * b.constant
            if node.args[0].op in _SCALARS and node.args[1].op not in _SCALARS:
                return atom(_int("*", node.args[1], node.args[0]))
    return atom(node)


def floor_divided(form: Linear, divisor: int | Node) -> Linear:
    """floor(form / divisor) for a positive divisor."""
    if isinstance(divisor, Node):
        return atom(_int("//", form.node(), divisor)) if form != Linear() else form
    if all(factor % divisor == 0 for _, factor in form.terms):
        return Linear.of({a: f // divisor for a, f in form.terms}, form.constant // divisor)
    return atom(_int("//", form.node(), number(divisor)))


def ceil_divided(form: Linear, divisor: int | Node) -> Linear:
    """ceil(form / divisor) for a positive divisor."""
    return -floor_divided(-form, divisor)


@dataclass(frozen=True)
class Tile:
    """One variable is sought, the other runs over a tile; everything else is constant."""

    sought: Literal["k", "q"]
    inputs: Mapping[str, tuple[str, ...]]
    minimums: Mapping[str, float]
    low: tuple[Linear, ...] = ()  # only the tile's positions from here on matter
    high: tuple[Linear, ...] = ()  # and only those up to here
    proofs: dict[Linear, bool] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def limits(self) -> dict[str, tuple[int, int]]:
        """The ranges of the call's numbers, from their known least values up."""
        return {name: (int(least), LARGEST) for name, least in self.minimums.items()}

    @property
    def other(self) -> str:
        return "q" if self.sought == "k" else "k"

    def still(self, node: Node) -> bool:
        """True if the expression has one value for the whole tile."""
        return not self.moves(node) and not any(n.op == "var" and n.value == self.other for n in node.walk())

    def moves(self, node: Node) -> bool:
        """True if the expression depends on the sought variable, or on values unknown before the tile is loaded."""
        for n in node.walk():
            if n.op == "var" and n.value in (self.sought, "score"):
                return True
            if n.op == "input" and not (n.value in self.inputs and _STILL.issuperset(self.inputs[str(n.value)])):
                return True
        return False

    def clipped(self, forms: Iterable[Linear]) -> Tile:
        """The part of the tile where each of these forms can be at most zero, if bounds on the position express it."""
        low, high, position = [], [], variable(self.other)
        for form in forms:
            factor, rest = form.factor(position), form.without(position)
            if not all(self.still(part) for part, _ in rest.terms):
                continue
            if factor > 0:
                high.append(floor_divided(-rest, factor))
            elif factor < 0:
                low.append(ceil_divided(rest, -factor))
        return replace(self, low=tuple(low), high=tuple(high))

    def positive(self, node: Node) -> bool:
        """True if the expression is a scalar known to be at least 1."""
        least = self._bound(node)
        return node.type == "int" and least is not None and least >= 1

    def _bound(self, node: Node) -> float | None:
        if node.op == "num" and isinstance(node.value, int):
            return node.value
        if node.op in _SCALARS:
            return self.minimums.get(str(node.value))
        if node.op == "//" and self.positive(node.args[1]) and self._never_negative(linear(node.args[0])):
            return 0
        return 0 if node.op == "var" and node.value in _COUNTS else None

    def extremes(self, form: Linear) -> tuple[Linear, Linear] | None:
        """Bounds of the form over the tile, from each term separately; None if a term has none."""
        low = high = Linear((), form.constant)
        for part, factor in form.terms:
            ends = self._ends(part)
            if ends is None:
                return None
            low, high = low + ends[factor < 0] * factor, high + ends[factor > 0] * factor
        return low, high

    def _ends(self, node: Node) -> tuple[Linear, Linear] | None:
        if node.type != "int" or self.moves(node):
            return None
        if self.still(node):
            return atom(node), atom(node)
        if node.op == "var":
            first, last = (atom(variable(f"{self.other}_{end}")) for end in ("first", "last"))
            return self.greatest([first, *self.low]), self.least([last, *self.high])
        if node.op == "%" and self.positive(node.args[1]):
            return Linear(), linear(node.args[1]) + -1
        if node.op == "*" and self.positive(node.args[0]):
            return self._ends(_int("*", node.args[1], node.args[0]))
        known = [self.extremes(linear(arg)) for arg in node.args if arg.type == "int"]
        ends = [pair for pair in known if pair is not None]
        if len(ends) < len(known):
            return None
        lows, highs = [pair[0] for pair in ends], [pair[1] for pair in ends]
        match node.op:
            case "//" if self.positive(node.args[1]):
                divisor = node.args[1].value if node.args[1].op == "num" else node.args[1]
                assert isinstance(divisor, (int, Node))
                return floor_divided(lows[0], divisor), floor_divided(highs[0], divisor)
            case "*" if self.positive(node.args[1]):
                return self.times(lows[0], node.args[1]), self.times(highs[0], node.args[1])
            case "min":
                return self.least(lows), self.least(highs)
            case "max":
                return self.greatest(lows), self.greatest(highs)
            case "where":
                return self.least(lows), self.greatest(highs)
            case "abs":
                return self.greatest([lows[0], -highs[0], Linear()]), self.greatest([highs[0], -lows[0]])
        return None

    def times(self, form: Linear, scalar: Node) -> Linear:
        """The form times a scalar that the user's expression also multiplies or divides by."""
        if scalar.op == "num" and isinstance(scalar.value, int):
            return form * scalar.value
        whole = Linear(form.terms)
        product = atom(_int("*", whole.node(), scalar)) if whole.terms else Linear()
        return product + atom(scalar) * form.constant

    def scaled_back(self, form: Linear, divisor: Node, most: int) -> Linear:
        """`form * divisor`, where the form bounds a quotient by that divisor; clamped beyond all dividends.

        These lie within `most` of 0.
        """
        harmless = len(form.terms) <= 1 and abs(form.constant) <= 3
        if not (harmless and all(abs(f) == 1 and a.op == "//" and a.args[1] == divisor for a, f in form.terms)):
            by = divisor.value if isinstance(divisor.value, int) else divisor
            limit = floor_divided(Linear((), max(most, _MARGIN)), by) + 2
            form = self.greatest([self.least([form, limit]), -limit])
        return self.times(form, divisor)

    def least(self, forms: list[Linear]) -> Linear:
        """The minimum, without forms that are provably never the smallest."""
        return self._outermost("min", forms, lambda a, b: self.at_most(a, b))

    def greatest(self, forms: list[Linear]) -> Linear:
        """The maximum, without forms that are provably never the largest."""
        return self._outermost("max", forms, lambda a, b: self.at_most(b, a))

    def _outermost(self, op: str, forms: list[Linear], beats: Callable[[Linear, Linear], bool]) -> Linear:
        kept: list[Linear] = []
        for form in forms:
            if not any(beats(other, form) for other in kept):
                kept = [other for other in kept if not beats(form, other)] + [form]
        result = kept[0]
        for form in kept[1:]:
            result = atom(_int(op, result.node(), form.node()))
        return result

    def at_most(self, a: Linear, b: Linear) -> bool:
        """True if a <= b is provable for every tile and every value of the scalars."""
        if a.terms == b.terms:
            return a.constant <= b.constant
        if node := a.alone("max", "where"):
            return all(self.at_most(linear(arg) + a.constant, b) for arg in node.args[-2:])
        if node := b.alone("min", "where"):
            return all(self.at_most(a, linear(arg) + b.constant) for arg in node.args[-2:])
        if (node := a.alone("min")) and any(self.at_most(linear(arg) + a.constant, b) for arg in node.args):
            return True
        if (node := b.alone("max")) and any(self.at_most(a, linear(arg) + b.constant) for arg in node.args):
            return True
        return self._never_negative(b - a)

    def _never_negative(self, form: Linear) -> bool:
        if form not in self.proofs:  # the same few forms are asked for again and again
            self.proofs[form] = self._proves(form)
        return self.proofs[form]

    def _proves(self, form: Linear) -> bool:
        form = self._without_pairs(form)
        for part, factor in form.terms:
            if rounded := self._rounded(part, factor):
                value, divisor, times = rounded
                # The multiple lies 0 to divisor - 1 below the value that was rounded down.
                furthest = value if times < 0 else value - divisor + 1
                return self._never_negative(form.without(part) + furthest * times)
        form = self._at_worst(form)
        total: float = form.constant
        for part, factor in form.terms:
            bound = self._bound(part)
            if bound is None or factor < 0:
                return False
            total += factor * bound
        return total >= 0

    def _at_worst(self, form: Linear) -> Linear:
        """The form for the tile, among all positions that exist, for which it is the least."""
        first, last = variable(f"{self.other}_first"), variable(f"{self.other}_last")
        a, b = form.factor(first), form.factor(last)
        together = max(min(-a, b), 0)  # the last position is no less than the first
        k_len = atom(variable("k_len"))
        start = Linear() if self.other == "k" else atom(variable("q_begin"))
        form = form.without(first).without(last)
        for factor in (a + together, b - together):
            form = form + (start if factor > 0 else k_len + -1) * factor
        return form

    def _rounded(self, part: Node, factor: int) -> tuple[Linear, Linear, int] | None:
        """A term that is `times` a value rounded down to a multiple: the value, the divisor, and `times`."""
        if part.op == "*" and part.args[0].op == "//" and part.args[0].args[1] == part.args[1]:
            if self.positive(part.args[1]):
                return linear(part.args[0].args[0]), linear(part.args[1]), factor
        if part.op == "//" and isinstance(part.args[1].value, int):
            divisor = part.args[1].value
            if divisor > 0 and factor % divisor == 0:
                return linear(part.args[0]), Linear((), divisor), factor // divisor
        return None

    def _without_pairs(self, form: Linear) -> Linear:
        """The form without `c * (a // s) - c * (b // s)` and `c * (a * s) - c * (b * s)` if b <= a: they are >= 0."""
        for a, factor in form.terms:
            for b, opposite in form.terms:
                if factor <= 0 or opposite != -factor or a.op != b.op or a.op not in ("//", "*"):
                    continue
                if a.args[1] == b.args[1] and self.positive(a.args[1]):
                    if self.at_most(linear(b.args[0]), linear(a.args[0])):
                        return self._without_pairs(form.without(a).without(b))
        return form
