"""Expression -> text in the language of the specs."""

from __future__ import annotations

from . import printers
from .expression import Node
from .printers import Text


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
    if op in printers.COMPARISONS:
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
