"""Constructors of operations that drop neutral elements and double signs and merge literal factors, for derivatives.

`0 * x` becomes 0 whatever x is, so these are not for values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from .tree import Node

# Literal factors are merged only within these bounds, so that no intermediate result leaves float32's range for it.
_MERGEABLE = (Fraction(1, 2**20), Fraction(2**20))


def num(value: float) -> Node:
    """A float literal."""
    return Node("num", value=float(value))


ZERO, HALF, ONE = num(0), num(0.5), num(1)


def literal(node: Node) -> int | float | None:
    """The value of a literal or of a negated literal; None for anything else."""
    if node.op == "num" and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return node.value
    if node.op == "neg":
        inner = literal(node.args[0])
        return None if inner is None else -inner
    return None


def is_literal(node: Node, value: float) -> bool:
    """True if a node is a literal with this value."""
    return literal(node) == value


def _folded(compute: Callable[[], float]) -> Node | None:
    """The value of a constant expression as a literal; None if it is not finite."""
    try:
        value = compute()
    except (ArithmeticError, ValueError):
        return None
    return num(value) if math.isfinite(value) else None


def add(a: Node, b: Node) -> Node:
    """The sum."""
    x, y = literal(a), literal(b)
    if x == 0:
        return b
    if y == 0:
        return a
    if x is not None and y is not None:
        return _folded(lambda: x + y) or Node("+", (a, b))
    if b.op == "neg":
        return sub(a, b.args[0])
    return Node("+", (a, b))


def sub(a: Node, b: Node) -> Node:
    """The difference."""
    x, y = literal(a), literal(b)
    if y == 0:
        return a
    if x == 0:
        return neg(b)
    if x is not None and y is not None:
        return _folded(lambda: x - y) or Node("-", (a, b))
    if b.op == "neg":
        return add(a, b.args[0])
    return Node("-", (a, b))


def neg(a: Node) -> Node:
    """The negative."""
    x = literal(a)
    if x is not None:
        return num(-x)
    return a.args[0] if a.op == "neg" else Node("neg", (a,))


def _scaled(node: Node) -> tuple[Fraction, Node]:
    """A node as an exact literal factor times the rest; the rest of a literal is 1."""
    value = literal(node)
    if value is not None:
        return Fraction(value), ONE
    if node.op in ("*", "/"):
        a, b = node.args
        x, y = literal(a), literal(b)
        if node.op == "*" and x is not None:
            return Fraction(x), b
        if y is not None and (node.op == "*" or y != 0):
            factor = Fraction(y) if node.op == "*" else 1 / Fraction(y)
            return (factor, a) if x is None else (factor * Fraction(x), ONE)
    return Fraction(1), node


def _mergeable(factor: Fraction) -> bool:
    return _MERGEABLE[0] <= abs(factor) <= _MERGEABLE[1]


def _chosen(node: Node) -> tuple[Fraction, Node]:
    """A slope as a literal factor times a `where`; 1 times the slope itself if it is no such product."""
    if node.op == "neg":
        factor, choice = _chosen(node.args[0])
        return -factor, choice
    factor, rest = _scaled(node)
    return (factor, rest) if rest.op == "where" and _mergeable(factor) else (Fraction(1), node)


def _blocks(node: Node) -> bool:
    """True if a slope is a `where`, possibly nested, of which a branch is 0."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        choice = _chosen(waiting.pop())[1]
        if choice.op == "where" and id(choice) not in seen:
            seen.add(id(choice))
            if any(is_literal(branch, 0) for branch in choice.args[1:]):
                return True
            waiting += choice.args[1:]
    return False


def _spread(node: Node, build: Callable[[Node], Node]) -> Node:
    """Applies `build` to each branch of a `where`: a branch of 0 stays 0, whatever the other operand is."""
    known: dict[tuple[int, Fraction], Node] = {}

    def of(n: Node, outer: Fraction) -> Node:
        key = id(n), outer
        if key not in known:
            factor, choice = _chosen(n)
            if choice.op == "where" and _mergeable(factor * outer):
                condition, *branches = choice.args
                known[key] = where(condition, *(of(branch, factor * outer) for branch in branches))
            else:
                known[key] = build(n if outer == 1 else mul(num(float(outer)), n))
        return known[key]

    return of(node, Fraction(1))


def mul(a: Node, b: Node) -> Node:
    """The product; a branch of a `where` that is 0 stays 0, whatever the other factor is."""
    if is_literal(a, 0) or is_literal(b, 0):
        return ZERO
    if is_literal(a, 1):
        return b
    if is_literal(b, 1):
        return a
    for slope, other in ((a, b), (b, a)):
        if literal(other) is None and _blocks(slope):
            return _spread(slope, lambda branch, other=other: mul(branch, other))  # type: ignore[misc]
    if a.op == "neg" or is_literal(a, -1):
        return neg(mul(a.args[0] if a.op == "neg" else ONE, b))
    if b.op == "neg" or is_literal(b, -1):
        return neg(mul(a, b.args[0] if b.op == "neg" else ONE))
    for factor, other in ((a, b), (b, a)):
        # The value divides by the option as well, so cancelling it loses nothing if it is zero.
        if other.op == "/" and factor.op == "option" and other.args[1] == factor:
            return other.args[0]
        if other.op == "/" and is_literal(other.args[0], 1) and literal(other.args[1]) is None:
            return div(factor, other.args[1])
    (ca, ra), (cb, rb) = _scaled(a), _scaled(b)
    if _mergeable(ca) and _mergeable(cb) and (ra is ONE or rb is ONE or (ca != 1 and cb != 1)):
        return _times(ca * cb, ra if rb is ONE else rb if ra is ONE else Node("*", (ra, rb)))
    return Node("*", (a, b))


def _times(factor: Fraction, rest: Node) -> Node:
    if factor < 0:
        return neg(_times(-factor, rest))
    if factor == 1 or rest is ONE:
        return rest if factor == 1 else num(float(factor))
    if factor.numerator == 1 and factor.denominator > 2:
        return Node("/", (rest, num(factor.denominator)))
    return Node("*", (num(float(factor)), rest))


def div(a: Node, b: Node) -> Node:
    """The quotient."""
    x, y = literal(a), literal(b)
    if y == 1 or (x == 0 and y != 0):
        return a
    if x is not None and y is not None and y != 0 and Fraction(x / y) == Fraction(x) / Fraction(y):
        return num(x / y)
    if y is None and _blocks(a):
        return _spread(a, lambda branch: div(branch, b))
    if a.op == "neg":
        return neg(div(a.args[0], b))
    return Node("/", (a, b))


def power(a: Node, b: Node) -> Node:
    """The power."""
    if is_literal(b, 0):
        return ONE
    return a if is_literal(b, 1) else Node("**", (a, b))


def where(condition: Node, a: Node, b: Node) -> Node:
    """The choice of `a` if the condition holds, otherwise of `b`."""
    if condition.op == "num":
        return a if condition.value else b
    return a if a == b else Node("where", (condition, a, b))


def compare(op: str, a: Node, b: Node) -> Node:
    """A comparison."""
    return Node(op, (a, b), type="bool")


def call(name: str, *args: Node) -> Node:
    """A function call."""
    if name == "log" and (x := literal(args[0])) is not None and x > 0:
        return num(math.log(x))
    return Node(name, args)
