"""Expression -> text in the language of the specs."""

from __future__ import annotations

from ..expressions.folding import chosen
from ..expressions.tree import COMPARISONS, Node
from . import printers
from .printers import Text


def plain(node: Node) -> Node:
    """The expression simplified for readers: without choices that are decided, or whose branches are the same."""
    node = chosen(node)
    args = tuple(map(plain, node.args))
    if node.op == "where":
        condition, first, second = args
        if _sorted(first) == _sorted(second):
            return first
        if second.op == "where" and _sorted(first) == _sorted(second.args[1]):
            either = Node("or", (condition, second.args[0]), None, "bool")
            return plain(Node("where", (either, first, second.args[2]), None, node.type))
    return Node(node.op, args, node.value, node.type, node.column)


def _sorted(node: Node) -> Node:
    """The expression with the arguments of commutative operations in a fixed order."""
    args = tuple(map(_sorted, node.args))
    if node.op in ("+", "*", "min", "max", "and", "or"):
        args = tuple(sorted(args, key=repr))
    return Node(node.op, args, node.value, node.type)


def source(node: Node) -> str:
    """An expression in the language of the specs."""
    return _print(node).text


def _print(node: Node) -> Text:
    op, parts = node.op, [_print(a) for a in node.args]
    if op == "num":
        value = repr(node.value)
        return Text(value, printers.UNARY if value.startswith("-") else printers.ATOM)
    if op in printers.LEAVES:
        index = f"[{', '.join(p.text for p in parts)}]" if parts else ""
        return Text(f"{node.value}{index}", printers.ATOM)
    if op in printers.BINARY:
        level = printers.BINARY[op]
        return Text(f"{parts[0].within(level)} {op} {parts[1].within(level + 1)}", level)
    if op in COMPARISONS:
        return Text(f"{parts[0].within(printers.SUM)} {op} {parts[1].within(printers.SUM)}", printers.COMPARE)
    if op in ("and", "or"):
        level = printers.AND if op == "and" else printers.OR
        return Text(f"{parts[0].within(level)} {op} {parts[1].within(level)}", level)
    if op == "**":
        return Text(f"{parts[0].within(printers.ATOM)} ** {parts[1].within(printers.UNARY)}", printers.POWER)
    if op == "neg":
        return Text("-" + parts[0].within(printers.UNARY), printers.UNARY)
    if op == "not":
        return Text("not " + parts[0].within(printers.NOT), printers.NOT)
    if op == "where":
        c, a, b = parts
        text = f"{a.within(printers.OR)} if {c.within(printers.OR)} else {b.within(printers.TERNARY)}"
        return Text(text, printers.TERNARY)
    return Text(f"{op}({', '.join(p.text for p in parts)})", printers.ATOM)
