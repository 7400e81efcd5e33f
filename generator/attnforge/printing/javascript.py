"""Expression -> JavaScript text, with Python's meaning of `//` and `%`; whole numbers are exact up to 2**53.

The text expects what templates/page/arithmetic.js.jinja defines in scope.
"""

from __future__ import annotations

from ..expressions.functions import FUNCTIONS
from ..expressions.tree import COMPARISONS, Node
from . import printers
from .printers import Leaf, Text

_HELPERS = {"**": "Math.pow", "//": "floorDiv", "%": "mod"}
_SIGNS = {"==": "===", "!=": "!=="}


def javascript(node: Node, leaf: Leaf) -> str:
    """JavaScript text of an expression; `leaf` gives the text of a name, which needs no brackets anywhere."""
    return _print(node, leaf).text


def _print(node: Node, leaf: Leaf) -> Text:
    op = node.op
    if op == "num":
        return _number(node)
    if op in printers.LEAVES:
        return Text(leaf(node), printers.ATOM)
    parts = [_print(arg, leaf) for arg in node.args]
    if op in ("+", "-", "*", "/"):
        level = printers.BINARY[op]
        if op == "/" and node.args[1].type == "int" and node.args[1].op in ("neg", "*"):
            # an integer zero has no sign: `+ 0` turns -0 into 0
            parts[1] = Text(f"({parts[1].within(printers.SUM)} + 0)", printers.ATOM)
        return Text(f"{parts[0].within(level)} {op} {parts[1].within(level + 1)}", level)
    if op in COMPARISONS:
        sign = _SIGNS.get(op, op)
        return Text(f"{parts[0].within(printers.SUM)} {sign} {parts[1].within(printers.SUM)}", printers.COMPARE)
    if op in ("and", "or"):
        sign, level = ("&&", printers.AND) if op == "and" else ("||", printers.OR)
        return Text(f"{parts[0].within(level)} {sign} {parts[1].within(level)}", level)
    if op in ("neg", "not"):
        # two minus signs in a row would be another operator
        return Text(("-" if op == "neg" else "!") + parts[0].within(printers.ATOM), printers.UNARY)
    if op == "where":
        c, a, b = parts
        text = f"{c.within(printers.OR)} ? {a.within(printers.OR)} : {b.within(printers.OR)}"
        return Text(text, printers.TERNARY)
    whole_power = op == "**" and node.type == "int"
    name = "power" if whole_power else FUNCTIONS[op].javascript if op in FUNCTIONS else _HELPERS[op]
    return Text(f"{name}({', '.join(part.text for part in parts)})", printers.ATOM)


def _number(node: Node) -> Text:
    if isinstance(node.value, bool):
        return Text("true" if node.value else "false", printers.ATOM)
    text = repr(node.value)
    return Text(text, printers.UNARY if text.startswith("-") else printers.ATOM)
