"""Ranges of integer expressions, so that they are computed in integer types that hold them.

Positions, lengths and numbers of a call stay within 2**28; the rest follows from the operations. A range may be wider
than the values that occur, never narrower.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping

from .folding import LARGEST, constant
from .inputs import Input, RuntimeOption
from .linear_forms import linear, variable
from .tree import Node

SHORT, LONG = 2**31 - 1, 2**63 - 1  # of int32 and int64
_BEYOND = 2**128  # ends of ranges are clamped to this distance from 0
_MANY = 2**24  # there are fewer heads, batch entries or sequences
_NAMES = dict.fromkeys(("k", "k_first", "k_last", "q_len", "k_len"), (0, LARGEST))
_NAMES["q_begin"] = (-LARGEST, LARGEST)  # the position of the first query
_NAMES |= dict.fromkeys(("b", "h", "kv_h", "heads"), (0, _MANY))
# differences, first minus second, and their least values: their parts alone would let them exceed 2**28
_NEAR = (("q", "k", -LARGEST), ("k_len", "q", 0), ("k_len", "k", 0))

Range = tuple[int, int]


def limits(inputs: Iterable[Input], options: Iterable[RuntimeOption] = ()) -> dict[str, Range]:
    """The ranges of the integers that calls give, by name."""
    given = {option.keyword: option for option in options} | {one.name: one for one in inputs if one.dtype == "int"}
    return {
        name: (-LARGEST if x.minimum is None else int(x.minimum), LARGEST if x.maximum is None else int(x.maximum))
        for name, x in given.items()
    }


class Ranges:
    """The ranges of expressions; `limits` are those of options and inputs, by name."""

    def __init__(self, limits: Mapping[str, Range]) -> None:
        self._limits = limits
        self._known: dict[Node, Range] = {}

    def within(self, node: Node, most: int) -> bool:
        """True if an integer expression is certain to lie between -most and most."""
        low, high = self.of(node)
        return -most <= low and high <= most

    def may_be_0(self, node: Node) -> bool:
        """True unless an integer expression is certain not to be 0."""
        low, high = self.of(node)
        return low <= 0 <= high

    def of(self, node: Node) -> Range:
        """The least and the greatest value of an integer expression."""
        if node not in self._known:
            low, high = self._of(node)
            self._known[node] = max(low, -_BEYOND), min(high, _BEYOND)
        return self._known[node]

    def _of(self, node: Node) -> Range:
        op, args = node.op, node.args
        if op == "num":
            return (int(str(node.value)),) * 2
        if op in ("var", "option", "input", "local"):
            if node.definition is not None:
                return self.of(node.definition)
            name = str(node.value)
            return self._limits.get(name) or _NAMES.get(name, (-LARGEST, LARGEST))
        if op == "floor":
            return self.of(args[0]) if args[0].type == "int" else (-LARGEST, LARGEST)
        if op == "where":
            return _hull(self.of(args[1]), self.of(args[2]))
        if op == "*":
            return self._product(*args)
        if op == "**":
            return _power(self.of(args[0]), int(constant(args[1]) or 0))
        found = [self.of(arg) for arg in args]
        if op in ("+", "-", "neg"):
            return _both(_sum(op, found), self._linear(node))
        if op in ("min", "max"):
            choose = min if op == "min" else max
            return choose(r[0] for r in found), choose(r[1] for r in found)
        if op == "abs":
            low, high = found[0]
            return max(low, -high, 0), max(-low, high)
        return (_quotient if op == "//" else _rest)(*found)

    def _linear(self, node: Node) -> Range:
        """The range of a sum, in which each distance between positions counts as one term."""
        form = linear(node)
        low = high = form.constant
        for first, second, least in _NEAR:
            a, b = form.factor(variable(first)), -form.factor(variable(second))
            if a * b > 0:
                many = min(a, b) if a > 0 else max(a, b)
                form = form - (linear(variable(first)) - linear(variable(second))) * many
                ends = sorted((many * least, many * LARGEST))
                low, high = low + ends[0], high + ends[1]
        for part, factor in form.terms:
            ends = sorted(factor * end for end in self.of(part))
            low, high = low + ends[0], high + ends[1]
        return low, high

    def _product(self, a: Node, b: Node) -> Range:
        found = _corners(self.of(a), self.of(b))
        if a == b:
            found = max(found[0], 0), found[1]
        for value, factor in ((a, b), (b, a)):
            if self.of(factor)[0] >= 1:
                found = _both(found, self._times(value, factor))
        return found

    def _times(self, value: Node, factor: Node) -> Range:
        """The range of a value times a factor that is at least 1 and may be a divisor inside the value."""
        least, most = self.of(factor)
        if value.op == "//" and value.args[1] == factor:
            low, high = self.of(value.args[0])
            return low - most + 1, high
        if value.op in ("min", "max", "+", "-", "neg"):
            found = [self._times(arg, factor) for arg in value.args]
            if value.op in ("+", "-", "neg"):
                return _sum(value.op, found)
            choose = min if value.op == "min" else max
            return choose(r[0] for r in found), choose(r[1] for r in found)
        return _corners(self.of(value), (least, most))


def _sum(op: str, found: list[Range]) -> Range:
    (low, high), other = found[0], found[-1]
    if op == "neg":
        return -high, -low
    return (low + other[0], high + other[1]) if op == "+" else (low - other[1], high - other[0])


def _both(a: Range, b: Range) -> Range:
    return max(a[0], b[0]), min(a[1], b[1])


def _hull(a: Range, b: Range) -> Range:
    return min(a[0], b[0]), max(a[1], b[1])


def _corners(a: Range, b: Range) -> Range:
    found = [x * y for x, y in itertools.product(a, b)]
    return min(found), max(found)


def _power(base: Range, times: int) -> Range:
    low, high = sorted(end**times for end in base)
    return (0 if times and times % 2 == 0 and base[0] <= 0 <= base[1] else low), high


def _quotient(a: Range, by: Range) -> Range:
    if by[0] < 1:
        most = max(-a[0], a[1])
        return -most, most
    found = [x // y for x, y in itertools.product(a, by)]
    return min(found), max(found)


def _rest(a: Range, by: Range) -> Range:
    if by[0] >= 1:
        return 0, min(a[1], by[1] - 1) if a[0] >= 0 else by[1] - 1
    return min(by[0] + 1, 0), max(by[1] - 1, 0)


def shortened(node: Node, limits: Mapping[str, Range]) -> Node:
    """The index; if an int32 might not hold it, clamped to positions beyond all entries."""
    if Ranges(limits).within(node, SHORT):
        return node
    most = Node("num", (), LARGEST, "int")
    return Node("max", (Node("min", (node, most), None, "int"), Node("neg", (most,), None, "int")), None, "int")


def stretched(nodes: Iterable[Node], limits: Mapping[str, Range]) -> set[str]:
    """The names that are read by integer expressions that can exceed an int32."""
    ranges = Ranges(limits)
    far = (n for root in nodes for n in root.walk() if n.type == "int" and not ranges.within(n, SHORT))
    return {str(leaf.value) for node in far for leaf in node.walk() if leaf.op in ("var", "input")}


def floated(node: Node) -> bool:
    """True if an operation on integers only is computed in floats, because no integer type holds its result."""
    return node.type == "float" and node.op in ("+", "-", "*", "**") and all(arg.type == "int" for arg in node.args)


def settled(node: Node, inputs: Iterable[Input], fail: Callable[[Node, str], object]) -> Node | None:
    """The expression with floats in place of integers that can exceed 2**63, if they are used as floats anyway.

    Elsewhere such an integer is a mistake, and the result is None.
    """
    ranges = Ranges(limits(inputs))
    mistakes: list[Node] = []

    def of(node: Node, real: bool) -> Node:
        far = node.type == "int" and not ranges.within(node, LONG)
        if far and not real:
            mistakes.append(node)
            return node
        floats = node.type == "float" or far or (node.type == "bool" and any(a.type == "float" for a in node.args))
        args = tuple(of(arg, floats and node.op != "input" and arg.type == "int") for arg in node.args)
        return dataclasses.replace(node, args=args, type="float" if far else node.type)

    found = of(node, node.type != "bool")
    for one in mistakes:
        fail(one, "this whole number can pass 2**63, as positions go to 2**28: write 1.0 * a part of it")
    return None if mistakes else found
