"""Operations on literals, in Python's own arithmetic."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from .functions import FUNCTIONS
from .tree import Node

LARGEST = 2**28  # limit of positions, of lengths, and of integers that a spec or a call gives

OPERATIONS: dict[str, Callable[..., int | float | bool]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "neg": operator.neg,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "not": operator.not_, "and": lambda x, y: x and y, "or": lambda x, y: x or y,
    "where": lambda c, a, b: a if c else b,
}  # fmt: skip
OPERATIONS |= {name: function.value for name, function in FUNCTIONS.items()}


def constant(node: Node) -> int | float | bool | None:
    """The value of an expression of literals only, else None; infinite beyond a float's range, NaN if undefined."""
    if node.op == "num":
        return node.value if isinstance(node.value, int | float) else None
    if node.op not in OPERATIONS:
        return None
    values = []
    for arg in node.args:
        value = constant(arg)
        if value is None:
            return None
        values.append(value)
    try:
        result = OPERATIONS[node.op](*values)
    except OverflowError:
        return math.inf
    except (ArithmeticError, ValueError):
        return math.nan
    # a function counts as undefined where it is minus infinity
    if isinstance(result, complex) or (node.op in FUNCTIONS and result == -math.inf):
        return math.nan
    return result


def fold(node: Node) -> Node:
    """The expression with operations on literals evaluated, if the result is finite."""
    if node.op == "input":
        # inputs are looked up by equality; the text of an index is folded when it is printed
        return node
    args = tuple(map(fold, node.args))
    if args and all(a.op == "num" for a in args):
        try:
            value = OPERATIONS[node.op](*(a.value for a in args))
        except (ArithmeticError, ValueError):
            value = math.nan
        if not isinstance(value, complex) and math.isfinite(value):
            typed = {"int": int, "float": float, "bool": bool}[node.type](value)
            return Node("num", (), typed, node.type, node.column)
    return Node(node.op, args, node.value, node.type, node.column)


def chosen(node: Node) -> Node:
    """The expression without choices whose condition is constant, as it often is once options have their values."""
    args = tuple(map(chosen, node.args))
    if node.op == "where" and (condition := constant(args[0])) is not None:
        choice = args[1 if condition else 2]
        if choice.type == node.type:
            return choice
    return Node(node.op, args, node.value, node.type, node.column)


def whole_number(value: int, column: int) -> Node:
    """An integer literal, negated if the value is negative."""
    number = Node("num", (), abs(value), "int", column)
    return number if value >= 0 else Node("neg", (number,), None, "int", column)


def whole_limit(side: Node, sign: str, other: Node) -> Node:
    """A side of the comparison `side sign other`; a constant float beside an integer becomes an integer."""
    value = constant(side) if side.type == "float" and other.type == "int" else None
    if value is None or abs(value) > LARGEST or (sign in ("==", "!=") and value != int(value)):
        return side
    return whole_number(math.floor(value) if sign in (">=", "<") else math.ceil(value), side.column)
