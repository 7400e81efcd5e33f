"""Derivatives of expressions.

This deliberately does without a computer algebra system, because the results are printed into kernels. A small
differentiator keeps the order of operations that the author chose (and with it the rounding), keeps the meaning of
`//`, `%` and `where`, reuses subtrees of the value instead of rewriting them, and gives the same text on every machine.

The conventions at kinks are those of torch's autograd: `min` and `max` split a tie half and half, `abs` has slope 0
at 0, `floor` and `//` are flat, `where` has the slope of its selected branch, comparisons have no derivative. The
branch that is not selected contributes nothing: log(max(x, 0)) has slope 0 for negative x, although the slope of the
logarithm itself is infinite there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from .build import ONE, ZERO, add, call, compare, div, is_literal, literal, mul, neg, num, power, sub, where
from .functions import FUNCTIONS
from .sharing import ATOMS, share
from .tree import COMPARISONS, Node


def _power(node: Node, x: Node, y: Node, dx: Node, dy: Node) -> Node:
    exponent = literal(y)
    if exponent is not None:
        by_base = ZERO if exponent == 0 else mul(mul(num(exponent), power(x, _lowered(exponent))), dx)
    elif is_literal(dx, 0):
        by_base = ZERO
    else:
        # x**0 is flat, even at x = 0, where x**(y - 1) is infinite.
        slope = mul(y, power(x, sub(y, ONE)))
        by_base = mul(where(compare("==", y, ZERO), ZERO, slope), dx)
    if is_literal(dy, 0):
        return by_base
    by_exponent = mul(node, call("log", x))
    base = literal(x)
    if base is None or base <= 0:
        at_zero = Node("and", (compare("==", x, ZERO), compare(">=", y, ZERO)), type="bool")
        by_exponent = where(at_zero, ZERO, by_exponent)
    return add(by_base, mul(by_exponent, dy))


def _lowered(exponent: int | float) -> Node:
    """The exponent minus one; an int stays an int, so that a power of a negative base stays real."""
    return Node("num", value=exponent - 1, type="int") if isinstance(exponent, int) else num(exponent - 1)


def _remainder(node: Node, x: Node, y: Node, dx: Node, dy: Node) -> Node:
    return sub(dx, mul(call("floor", div(x, y)), dy)) if not is_literal(dy, 0) else dx


# by operator: a function of the node, its arguments and their derivatives that returns the node's derivative
_SLOPES: dict[str, Callable[..., Node]] = {
    "neg": lambda node, x, dx: neg(dx),
    "+": lambda node, x, y, dx, dy: add(dx, dy),
    "-": lambda node, x, y, dx, dy: sub(dx, dy),
    "*": lambda node, x, y, dx, dy: add(mul(dx, y), mul(x, dy)),
    "/": lambda node, x, y, dx, dy: sub(div(dx, y), mul(node, div(dy, y))),
    "%": _remainder,
    "**": _power,
    "where": lambda node, c, a, b, dc, da, db: where(c, da, db),
}
_SLOPES |= {name: f.slope for name, f in FUNCTIONS.items() if f.slope is not None}

# operations without a slope, whatever their arguments are
FLAT = frozenset({"num", "var", "option", "input", "local", "//", "and", "or", "not"})
FLAT |= COMPARISONS | {name for name, f in FUNCTIONS.items() if f.slope is None}


def derivative(node: Node, leaf: Node) -> Node:
    """The derivative of `node` with respect to `leaf` and all nodes equal to it."""
    known: dict[int, Node] = {}

    def of(n: Node) -> Node:
        if id(n) not in known:
            known[id(n)] = compute(n)
        return known[id(n)]

    def compute(n: Node) -> Node:
        if n.op == leaf.op and n == leaf:
            return ONE
        if n.op in FLAT or n.type != "float":
            return ZERO
        slopes = [of(arg) for arg in n.args]
        if all(is_literal(slope, 0) for slope in slopes):
            return ZERO
        return _SLOPES[n.op](n, *n.args, *slopes)

    return of(node)


def constant_slope(node: Node, leaf: Node) -> float | None:
    """The derivative with respect to `leaf`, if it is a number."""
    slope = simplify(derivative(node, leaf))
    sign, slope = (-1, slope.args[0]) if slope.op == "neg" else (1, slope)
    return sign * slope.value if slope.op == "num" and isinstance(slope.value, int | float) else None


def simplify(node: Node) -> Node:
    """The derivative without neutral elements and double signs, and with literal factors merged.

    `0 * x` becomes 0 whatever x is, so this is not for values.
    """
    known: dict[int, Node] = {}

    def of(n: Node) -> Node:
        if id(n) not in known:
            known[id(n)] = compute(n)
        return known[id(n)]

    def compute(n: Node) -> Node:
        if n.op in ATOMS or n.type != "float":
            return n
        args = tuple(of(arg) for arg in n.args)
        builder = _BUILDERS.get(n.op)
        if builder is not None:
            return builder(*args)
        return n if args == n.args else Node(n.op, args, n.value, n.type, n.column)

    return of(node)


_BUILDERS: dict[str, Callable[..., Node]] = {
    "+": add,
    "-": sub,
    "*": mul,
    "/": div,
    "**": power,
    "neg": neg,
    "where": where,
}


def slopes(node: Node, learned: Collection[str]) -> tuple[list[tuple[str, Node]], list[tuple[Node, Node]]]:
    """The temporaries and derivatives of a score term, with respect to the score and to each learned input."""
    read = (n for n in node.walk() if n.op in ("var", "input"))
    leaves = list(dict.fromkeys(n for n in read if (n.value == "score" if n.op == "var" else n.value in learned)))
    shared, found = share([simplify(derivative(node, leaf)) for leaf in leaves], "t")
    return shared, list(zip(leaves, found, strict=True))
