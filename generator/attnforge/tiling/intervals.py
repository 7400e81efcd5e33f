"""Interval arithmetic on expressions: least and greatest values, and whether a condition can hold or has to hold.

While `ranges` solves a mask for the positions of a side before a kernel runs, this module is for values that only the
call knows: the extremes of a tile's integers. Both ends are expressions, which kernels compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..expressions.tree import Node, Type

TRUE, FALSE = (Node("num", (), value, "bool") for value in (True, False))
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


class Ends(NamedTuple):
    """The least and the greatest value of a number; or whether a condition always holds, and whether it ever does."""

    least: Node
    most: Node


Known = Callable[[Node], Ends | None]
"""Gives the ends of a var, option or input; None if nothing is known."""


def ends(node: Node, known: Known) -> Ends | None:
    """The ends of an expression; None for a number about which nothing is known, and for floats, which round."""
    if node.type == "bool":
        return condition(node, known)
    if node.type != "int":
        return None
    if node.op in ("num", "var", "option", "input"):
        return Ends(node, node) if node.op == "num" else known(node)
    if node.op == "where":
        return _chosen(condition(node.args[0], known), [ends(arg, known) for arg in node.args[1:]])
    found = [ends(arg, known) for arg in node.args]
    args = [pair for pair in found if pair is not None]
    return _number(node.op, args) if len(args) == len(found) else None


def condition(node: Node, known: Known) -> Ends:
    """Tests of whether a condition holds everywhere, and whether it may hold somewhere; in doubt false, and true."""
    args = node.args
    if node.op == "num":
        return Ends(node, node)
    if node.op == "input":
        return known(node) or Ends(FALSE, TRUE)
    if node.op == "not":
        inner = condition(args[0], known)
        return Ends(_not(inner.most), _not(inner.least))
    if node.op in ("and", "or"):
        a, b = (condition(arg, known) for arg in args)
        join = _and if node.op == "and" else _or
        return Ends(join(a.least, b.least), join(a.most, b.most))
    if node.op == "where":
        return _chosen(condition(args[0], known), [condition(arg, known) for arg in args[1:]]) or Ends(FALSE, TRUE)
    if args[0].type == args[1].type == "bool":
        a, b = (condition(arg, known) for arg in args)
        always = _or(_and(a.least, b.least), _and(_not(a.most), _not(b.most)))
        ever = _or(_and(a.most, b.most), _and(_not(a.least), _not(b.least)))
        return Ends(always, ever) if node.op == "==" else Ends(_not(ever), _not(always))
    left, right = (ends(arg, known) for arg in args)
    return Ends(FALSE, TRUE) if left is None or right is None else _compared(node.op, left, right)


def _compared(op: str, a: Ends, b: Ends) -> Ends:
    if op in ("<", "<="):
        return Ends(_compare(op, a.most, b.least), _compare(op, a.least, b.most))
    if op in (">", ">="):
        return Ends(_compare(op, a.least, b.most), _compare(op, a.most, b.least))
    always = _and(_compare("==", a.least, b.most), _compare("==", a.most, b.least))
    ever = _and(_compare("<=", a.least, b.most), _compare("<=", b.least, a.most))
    return Ends(always, ever) if op == "==" else Ends(_not(ever), _not(always))


def _number(op: str, args: list[Ends]) -> Ends | None:
    a, b = args[0], args[-1]
    match op:
        case "+":
            return Ends(_int("+", a.least, b.least), _int("+", a.most, b.most))
        case "-":
            return Ends(_int("-", a.least, b.most), _int("-", a.most, b.least))
        case "neg":
            return Ends(_int("neg", a.most), _int("neg", a.least))
        case "min" | "max":
            return Ends(_int(op, a.least, b.least), _int(op, a.most, b.most))
        case "abs":
            if a.least == a.most:
                return Ends(*[_int("abs", a.least)] * 2)
            zero = Node("num", (), 0, "int")
            least = _int("-", _int("max", a.least, zero), _int("min", a.most, zero))
            return Ends(least, _int("max", _int("abs", a.least), _int("abs", a.most)))
        case "*":
            return _product(a, b) if _literal(b) is not None else _product(b, a) if _literal(a) is not None else None
        case "//" | "%" if (_literal(b) or 0) > 0:
            return _divided(op, a, b.least)
    return (
        Ends(Node(op, (a.least, b.least), None, "int"), Node(op, (a.least, b.least), None, "int"))
        if _still(args)
        else None
    )


def _product(a: Ends, factor: Ends) -> Ends:
    low, high = (_int("*", end, factor.least) for end in a)
    return Ends(low, high) if (_literal(factor) or 0) >= 0 else Ends(high, low)


def _divided(op: str, a: Ends, divisor: Node) -> Ends:
    first, last = (_int("//", end, divisor) for end in a)
    if op == "//" or a.least == a.most:
        return Ends(first, last) if op == "//" else Ends(*(_int("%", end, divisor) for end in a))
    same, zero = _compare("==", first, last), Node("num", (), 0, "int")
    most = Node("num", (), int(divisor.value or 1) - 1, "int")
    return Ends(_where(same, _int("%", a.least, divisor), zero), _where(same, _int("%", a.most, divisor), most))


def _chosen(chooser: Ends, choices: list[Ends | None]) -> Ends | None:
    a, b = choices
    if a is None or b is None:
        return None
    least, most = (_int("min", a.least, b.least), _int("max", a.most, b.most))
    if a.least.type == "bool":
        least, most = _and(a.least, b.least), _or(a.most, b.most)
    return Ends(
        _where(chooser.least, a.least, _where(chooser.most, least, b.least)),
        _where(chooser.least, a.most, _where(chooser.most, most, b.most)),
    )


def _still(args: list[Ends]) -> bool:
    return all(pair.least == pair.most for pair in args)


def _literal(pair: Ends) -> int | None:
    value = pair.least.value
    return value if pair.least.op == "num" and pair.least == pair.most and isinstance(value, int) else None


def _int(op: str, *args: Node) -> Node:
    if op in ("min", "max") and args[0] == args[1]:
        return args[0]
    if op == "neg" and args[0].op == "neg":
        return args[0].args[0]
    return Node(op, args, None, "int")


def _compare(op: str, a: Node, b: Node) -> Node:
    return Node(op, (a, b), None, "bool")


def _where(chooser: Node, a: Node, b: Node) -> Node:
    if chooser in (TRUE, FALSE) or a == b:
        return b if chooser == FALSE else a
    kind: Type = a.type
    if kind == "bool":
        return _or(_and(chooser, a), _and(_not(chooser), b))
    return Node("where", (chooser, a, b), None, kind)


def _not(a: Node) -> Node:
    if a in (TRUE, FALSE):
        return FALSE if a == TRUE else TRUE
    if a.op in _NEGATED:
        return _compare(_NEGATED[a.op], *a.args)
    return a.args[0] if a.op == "not" else Node("not", (a,), None, "bool")


def _and(a: Node, b: Node) -> Node:
    if FALSE in (a, b):
        return FALSE
    if a in (TRUE, b):
        return b
    return a if b == TRUE else Node("and", (a, b), None, "bool")


def _or(a: Node, b: Node) -> Node:
    if TRUE in (a, b):
        return TRUE
    if a in (FALSE, b):
        return b
    return a if b == FALSE else Node("or", (a, b), None, "bool")
