"""A mask as a disjunction of conjunctions of integer inequalities over one sought variable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..expressions.linear_forms import Linear, Tile, ceil_divided, floor_divided, linear, variable
from ..expressions.tree import Node
from ..expressions.whole_numbers import Ranges

_CONJUNCTIONS = 8  # more of them than this are merged
_SPLITS = 7  # levels of nested abs, min, max and where that are split into cases


@dataclass(frozen=True)
class AtMostZero:
    """An inequality over the sought and the other variable: form <= 0."""

    form: Linear


@dataclass(frozen=True)
class Holds:
    """A condition that is the same for the whole tile."""

    node: Node


@dataclass(frozen=True)
class Unknown:
    """A condition that has to be evaluated for each element."""

    reason: Node | Linear | None
    negated: bool = False


Conjunction = frozenset[AtMostZero | Holds | Unknown]
Disjunction = list[Conjunction]
TRUE: Disjunction = [frozenset()]
_FALSE: Disjunction = []
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


class Normal:
    """Brings a mask into disjunctive normal form."""

    def __init__(self, tile: Tile) -> None:
        self._tile = tile
        self._known: dict[tuple[int, bool], Disjunction] = {}

    def disjunction(self, node: Node, wanted: bool) -> Disjunction:
        """The conjunctions under which the node has the wanted truth value."""
        key = id(node), wanted
        if key not in self._known:
            self._known[key] = self._disjunction(node, wanted)
        return self._known[key]

    def _disjunction(self, node: Node, wanted: bool) -> Disjunction:
        args = node.args
        if node.op == "num":
            return TRUE if bool(node.value) == wanted else _FALSE
        if node.op == "not":
            return self.disjunction(args[0], not wanted)
        if node.op in ("and", "or"):
            parts = [self.disjunction(arg, wanted) for arg in args]
            return _both(*parts) if (node.op == "and") == wanted else _either(*parts)
        if node.op == "where":
            return self._chosen(args[0], lambda i: self.disjunction(args[i], wanted))
        if node.op in ("==", "!=") and args[0].type == args[1].type == "bool":
            same = wanted == (node.op == "==")
            return self._chosen(args[0], lambda i: self.disjunction(args[1], (i == 1) == same))
        if node.op in _NEGATED and args[0].type == args[1].type == "int":
            op = node.op if wanted else _NEGATED[node.op]
            if self._tile.still(node):
                return self._inequality(op, *args) if args[0].op == args[1].op == "num" else [_one(_still(op, *args))]
            return self._inequality(op, *args)
        if self._tile.still(node):
            return [_one(Holds(node if wanted else Node("not", (node,), type="bool")))]
        return [_one(Unknown(node, not wanted))]

    def _chosen(self, condition: Node, branch: Callable[[int], Disjunction]) -> Disjunction:
        yes = _both(self.disjunction(condition, True), branch(1))
        return _either(yes, _both(self.disjunction(condition, False), branch(2)))

    def _inequality(self, op: str, a: Node, b: Node) -> Disjunction:
        less = linear(a) - linear(b)
        match op:
            case "<=" | "<":
                return self._at_most_zero(less + (op == "<"))
            case ">=" | ">":
                return self._at_most_zero(-less + (op == ">"))
            case "==":
                return _both(self._at_most_zero(less), self._at_most_zero(-less))
        return _either(self._at_most_zero(less + 1), self._at_most_zero(-less + 1))

    def _at_most_zero(self, form: Linear, splits: int = 0) -> Disjunction:
        if not form.terms:
            return TRUE if form.constant <= 0 else _FALSE
        moving = [(part, factor) for part, factor in form.terms if self._tile.moves(part)]
        for part, factor in moving if splits < _SPLITS else ():
            rest = form.without(part)
            ways = [rest + linear(arg) * factor for arg in part.args if arg.type == "int"]
            if part.op == "abs":
                ways.append(rest - linear(part.args[0]) * factor)
            if part.op in ("abs", "max", "min"):
                join = _both if (factor > 0) == (part.op != "min") else _either
                return self._telling(join(*(self._at_most_zero(way, splits + 1) for way in ways)))
            if part.op == "where" and part.type == "int":
                solved_ways = [self._at_most_zero(way, splits + 1) for way in ways]
                return self._telling(self._chosen(part.args[0], lambda i, found=solved_ways: found[i - 1]))  # type: ignore[misc]
        if all(part.op == "var" and part.value == self._tile.sought for part, _ in moving):
            return [_one(AtMostZero(form))]
        if len(moving) == 1 and (solved := self._inverted(form, *moving[0])) is not None:
            return self._at_most_zero(solved, splits)
        return [_one(Unknown(form))]

    def _telling(self, cases: Disjunction) -> Disjunction:
        """The cases of one inequality; their common part if some are unknown and none bounds the sought variable."""
        literals = [literal for case in cases for literal in case]
        sought = variable(self._tile.sought)
        bounded = any(isinstance(literal, AtMostZero) and literal.form.factor(sought) for literal in literals)
        vague = any(isinstance(literal, Unknown) for literal in literals)
        return [_blurred(cases)] if vague and not bounded else cases

    def _inverted(self, form: Linear, part: Node, factor: int) -> Linear | None:
        """The inequality solved for the value that `part` divides or multiplies; None if that is impossible."""
        if part.op not in ("//", "*"):
            return None
        inner, scalar = part.args
        if part.op == "*" and self._tile.positive(inner):
            inner, scalar = scalar, inner
        if not self._tile.positive(scalar):
            return None
        by = scalar.value if isinstance(scalar.value, int) else scalar
        value, rest = linear(inner), form.without(part)
        most = max(map(abs, Ranges(self._tile.limits).of(inner)))
        if factor > 0:
            bound = floor_divided(-rest, factor)
            if part.op == "*":
                return value - floor_divided(bound, by)
            return value - self._tile.scaled_back(bound, scalar, most) - linear(scalar) + 1
        bound = ceil_divided(rest, -factor)
        return (ceil_divided(bound, by) if part.op == "*" else self._tile.scaled_back(bound, scalar, most)) - value


def _one(literal: AtMostZero | Holds | Unknown) -> Conjunction:
    return frozenset({literal})


def _still(op: str, a: Node, b: Node) -> Holds:
    return Holds(Node(op, (a, b), type="bool"))


def _either(*parts: Disjunction) -> Disjunction:
    """The disjunction, without conjunctions that imply another one; too many are replaced by their common part."""
    every = [conjunction for part in parts for conjunction in part]
    kept: Disjunction = []
    for conjunction in every:
        if not any(other <= conjunction for other in kept):
            kept = [other for other in kept if not conjunction <= other] + [conjunction]
    return kept if len(kept) <= _CONJUNCTIONS else [_blurred(kept)]


def _both(*parts: Disjunction) -> Disjunction:
    result = TRUE
    for part in sorted(parts, key=len):
        if len(result) * len(part) > _CONJUNCTIONS:
            result, part = sorted((result, part), key=len)
            result = [_blurred(result)]
        result = _either([a | b for a in result for b in part])
    return result


def _blurred(parts: Disjunction) -> Conjunction:
    """The common part of conjunctions: the literals that all of them have, and an unknown one."""
    return frozenset.intersection(*parts) | _one(Unknown(None))
