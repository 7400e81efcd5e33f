"""Derivatives of expressions.

A computer algebra system is not used on purpose: what comes out here is printed into kernels. A small differentiator
keeps the order of operations that the author chose (and with it the rounding), keeps what `//`, `%` and `where` mean,
reuses subtrees of the value instead of rewriting them into other forms, and gives the same text on every machine.

The conventions at kinks are those of torch's autograd: `min` and `max` split a tie half and half, `abs` has slope 0
at 0, `floor` and `//` are flat, `where` chooses, comparisons have no derivative. A choice passes nothing on through the
branch not taken: of log(max(x, 0)) that is a slope of 0 for negative x, though the logarithm's own is infinite there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from fractions import Fraction

from .sharing import ATOMS, share
from .tree import Node

# Literal factors are merged only where no intermediate result can leave the range of float32 for it.
_MERGEABLE = (Fraction(1, 2**20), Fraction(2**20))


def _num(value: float) -> Node:
    return Node("num", value=float(value))


_ZERO, _HALF, _ONE, _TWO = _num(0), _num(0.5), _num(1), _num(2)


def _literal(node: Node) -> int | float | None:
    if node.op == "num" and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return node.value
    if node.op == "neg":
        inner = _literal(node.args[0])
        return None if inner is None else -inner
    return None


def _is(node: Node, value: float) -> bool:
    return _literal(node) == value


def _folded(compute: Callable[[], float]) -> Node | None:
    """The literal that a constant expression comes to, unless it has no finite value."""
    try:
        value = compute()
    except (ArithmeticError, ValueError):
        return None
    return _num(value) if math.isfinite(value) else None


def _add(a: Node, b: Node) -> Node:
    x, y = _literal(a), _literal(b)
    if x == 0:
        return b
    if y == 0:
        return a
    if x is not None and y is not None:
        return _folded(lambda: x + y) or Node("+", (a, b))
    if b.op == "neg":
        return _sub(a, b.args[0])
    return Node("+", (a, b))


def _sub(a: Node, b: Node) -> Node:
    x, y = _literal(a), _literal(b)
    if y == 0:
        return a
    if x == 0:
        return _neg(b)
    if x is not None and y is not None:
        return _folded(lambda: x - y) or Node("-", (a, b))
    if b.op == "neg":
        return _add(a, b.args[0])
    return Node("-", (a, b))


def _neg(a: Node) -> Node:
    x = _literal(a)
    if x is not None:
        return _num(-x)
    return a.args[0] if a.op == "neg" else Node("neg", (a,))


def _scaled(node: Node) -> tuple[Fraction, Node]:
    """A node as a literal factor, exactly, times the rest; the rest of a literal is 1."""
    value = _literal(node)
    if value is not None:
        return Fraction(value), _ONE
    if node.op in ("*", "/"):
        a, b = node.args
        x, y = _literal(a), _literal(b)
        if node.op == "*" and x is not None:
            return Fraction(x), b
        if y is not None and (node.op == "*" or y != 0):
            factor = Fraction(y) if node.op == "*" else 1 / Fraction(y)
            return (factor, a) if x is None else (factor * Fraction(x), _ONE)
    return Fraction(1), node


def _mergeable(factor: Fraction) -> bool:
    return _MERGEABLE[0] <= abs(factor) <= _MERGEABLE[1]


def _chosen(node: Node) -> tuple[Fraction, Node]:
    """A slope as a literal factor times a choice; a factor that cannot be merged keeps the choice from sight."""
    if node.op == "neg":
        factor, choice = _chosen(node.args[0])
        return -factor, choice
    factor, rest = _scaled(node)
    return (factor, rest) if rest.op == "where" and _mergeable(factor) else (Fraction(1), node)


def _blocks(node: Node) -> bool:
    """Whether a slope is a choice that may come to 0."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        choice = _chosen(waiting.pop())[1]
        if choice.op == "where" and id(choice) not in seen:
            seen.add(id(choice))
            if any(_is(branch, 0) for branch in choice.args[1:]):
                return True
            waiting += choice.args[1:]
    return False


def _spread(node: Node, build: Callable[[Node], Node]) -> Node:
    """The choice among what `build` makes of each branch: of 0 it makes 0, whatever stands beside it."""
    known: dict[tuple[int, Fraction], Node] = {}

    def of(n: Node, outer: Fraction) -> Node:
        key = id(n), outer
        if key not in known:
            factor, choice = _chosen(n)
            if choice.op == "where" and _mergeable(factor * outer):
                condition, *branches = choice.args
                known[key] = _where(condition, *(of(branch, factor * outer) for branch in branches))
            else:
                known[key] = build(n if outer == 1 else _mul(_num(float(outer)), n))
        return known[key]

    return of(node, Fraction(1))


def _mul(a: Node, b: Node) -> Node:
    if _is(a, 0) or _is(b, 0):
        return _ZERO
    if _is(a, 1):
        return b
    if _is(b, 1):
        return a
    for slope, other in ((a, b), (b, a)):
        if _literal(other) is None and _blocks(slope):
            return _spread(slope, lambda branch, other=other: _mul(branch, other))  # type: ignore[misc]
    if a.op == "neg" or _is(a, -1):
        return _neg(_mul(a.args[0] if a.op == "neg" else _ONE, b))
    if b.op == "neg" or _is(b, -1):
        return _neg(_mul(a, b.args[0] if b.op == "neg" else _ONE))
    for factor, other in ((a, b), (b, a)):
        # The value divides by the option as well, so nothing is lost where it is zero.
        if other.op == "/" and factor.op == "option" and other.args[1] == factor:
            return other.args[0]
        if other.op == "/" and _is(other.args[0], 1) and _literal(other.args[1]) is None:
            return _div(factor, other.args[1])
    (ca, ra), (cb, rb) = _scaled(a), _scaled(b)
    if _mergeable(ca) and _mergeable(cb) and (ra is _ONE or rb is _ONE or (ca != 1 and cb != 1)):
        return _times(ca * cb, ra if rb is _ONE else rb if ra is _ONE else Node("*", (ra, rb)))
    return Node("*", (a, b))


def _times(factor: Fraction, rest: Node) -> Node:
    if factor < 0:
        return _neg(_times(-factor, rest))
    if factor == 1 or rest is _ONE:
        return rest if factor == 1 else _num(float(factor))
    if factor.numerator == 1 and factor.denominator > 2:
        return Node("/", (rest, _num(factor.denominator)))
    return Node("*", (_num(float(factor)), rest))


def _div(a: Node, b: Node) -> Node:
    x, y = _literal(a), _literal(b)
    if y == 1 or (x == 0 and y != 0):
        return a
    if x is not None and y is not None and y != 0 and Fraction(x / y) == Fraction(x) / Fraction(y):
        return _num(x / y)
    if y is None and _blocks(a):
        return _spread(a, lambda branch: _div(branch, b))
    if a.op == "neg":
        return _neg(_div(a.args[0], b))
    return Node("/", (a, b))


def _pow(a: Node, b: Node) -> Node:
    if _is(b, 0):
        return _ONE
    return a if _is(b, 1) else Node("**", (a, b))


def _where(condition: Node, a: Node, b: Node) -> Node:
    if condition.op == "num":
        return a if condition.value else b
    return a if a == b else Node("where", (condition, a, b))


def _compare(op: str, a: Node, b: Node) -> Node:
    return Node(op, (a, b), type="bool")


def _call(name: str, *args: Node) -> Node:
    if name == "log" and (x := _literal(args[0])) is not None and x > 0:
        return _num(math.log(x))
    return Node(name, args)


_RULES: dict[str, Callable[[Node, Node, Node], Node]] = {
    # (the node, its argument, the argument's derivative) -> the node's derivative
    "neg": lambda node, x, dx: _neg(dx),
    "exp": lambda node, x, dx: _mul(node, dx),
    "log": lambda node, x, dx: _div(dx, x),
    "sqrt": lambda node, x, dx: _div(_mul(_HALF, dx), node),
    "tanh": lambda node, x, dx: _mul(_sub(_ONE, _mul(node, node)), dx),
    "sigmoid": lambda node, x, dx: _mul(_mul(node, _sub(_ONE, node)), dx),
    "softplus": lambda node, x, dx: _mul(_call("sigmoid", x), dx),
    "sin": lambda node, x, dx: _mul(_call("cos", x), dx),
    "cos": lambda node, x, dx: _neg(_mul(_call("sin", x), dx)),
    "abs": lambda node, x, dx: _where(_compare(">", x, _ZERO), dx, _where(_compare("<", x, _ZERO), _neg(dx), _ZERO)),
}


def _power(node: Node, x: Node, y: Node, dx: Node, dy: Node) -> Node:
    exponent = _literal(y)
    if exponent is not None:
        by_base = _ZERO if exponent == 0 else _mul(_mul(_num(exponent), _pow(x, _lowered(exponent))), dx)
    elif _is(dx, 0):
        by_base = _ZERO
    else:
        # x**0 is flat, also at x = 0 where x**(y - 1) is infinite.
        slope = _mul(y, _pow(x, _sub(y, _ONE)))
        by_base = _mul(_where(_compare("==", y, _ZERO), _ZERO, slope), dx)
    if _is(dy, 0):
        return by_base
    by_exponent = _mul(node, _call("log", x))
    base = _literal(x)
    if base is None or base <= 0:
        at_zero = Node("and", (_compare("==", x, _ZERO), _compare(">=", y, _ZERO)), type="bool")
        by_exponent = _where(at_zero, _ZERO, by_exponent)
    return _add(by_base, _mul(by_exponent, dy))


def _lowered(exponent: int | float) -> Node:
    """The exponent less one; an int stays an int, so that a power of a negative base stays real."""
    return Node("num", value=exponent - 1, type="int") if isinstance(exponent, int) else _num(exponent - 1)


def _extremum(op: str, x: Node, y: Node, dx: Node, dy: Node) -> Node:
    tie = _mul(_HALF, _add(dx, dy))
    wins, loses = (">", "<") if op == "max" else ("<", ">")
    return _where(_compare(wins, x, y), dx, _where(_compare(loses, x, y), dy, tie))


def _binary(node: Node, x: Node, y: Node, dx: Node, dy: Node) -> Node:
    match node.op:
        case "+":
            return _add(dx, dy)
        case "-":
            return _sub(dx, dy)
        case "*":
            return _add(_mul(dx, y), _mul(x, dy))
        case "/":
            return _sub(_div(dx, y), _mul(node, _div(dy, y)))
        case "%":
            return _sub(dx, _mul(_call("floor", _div(x, y)), dy)) if not _is(dy, 0) else dx
        case "**":
            return _power(node, x, y, dx, dy)
        case "min" | "max":
            return _extremum(node.op, x, y, dx, dy)
    raise ValueError(f"no derivative of {node.op!r}")


# what has no slope, whatever it reads
FLAT = frozenset({"num", "var", "option", "input", "local", "floor", "//", "and", "or", "not"})
FLAT |= {"<", "<=", ">", ">=", "==", "!="}


def derivative(node: Node, leaf: Node) -> Node:
    """The derivative of `node` with respect to `leaf`; equal nodes are the same leaf."""
    known: dict[int, Node] = {}

    def of(n: Node) -> Node:
        if id(n) not in known:
            known[id(n)] = compute(n)
        return known[id(n)]

    def compute(n: Node) -> Node:
        if n.op == leaf.op and n == leaf:
            return _ONE
        if n.op in FLAT or n.type != "float":
            return _ZERO
        if n.op == "where":
            return _where(n.args[0], of(n.args[1]), of(n.args[2]))
        slopes = [of(arg) for arg in n.args]
        if all(_is(slope, 0) for slope in slopes):
            return _ZERO
        if len(slopes) == 1:
            return _RULES[n.op](n, n.args[0], slopes[0])
        return _binary(n, n.args[0], n.args[1], slopes[0], slopes[1])

    return of(node)


def simplify(node: Node) -> Node:
    """The same derivative with neutral elements, double signs and literal factors cleared away.

    `0 * x` is taken for 0, whatever x is, so this is not for values.
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
    "+": _add,
    "-": _sub,
    "*": _mul,
    "/": _div,
    "**": _pow,
    "neg": _neg,
    "where": _where,
}


def slopes(node: Node, learned: Collection[str]) -> tuple[list[tuple[str, Node]], list[tuple[Node, Node]]]:
    """The derivatives of a score term by the score and by each learned input, and the temporaries that they share."""
    read = (n for n in node.walk() if n.op in ("var", "input"))
    leaves = list(dict.fromkeys(n for n in read if (n.value == "score" if n.op == "var" else n.value in learned)))
    shared, found = share([simplify(derivative(node, leaf)) for leaf in leaves], "t")
    return shared, list(zip(leaves, found, strict=True))
