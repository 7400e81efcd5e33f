"""Expression -> MathML: fractions, roots, powers, cases, floor brackets, subscripts for the indices of inputs."""

from __future__ import annotations

import html
from collections.abc import Callable
from fractions import Fraction

from ..expressions.functions import FUNCTIONS
from ..expressions.tree import COMPARISONS, Node
from . import printers
from .printers import Text

Subscripts = Callable[[Node], str]
"""Gives the markup of the subscripts of an input as an expression reads it, "" if it has none."""

_SIGNS = {"<": "&lt;", "<=": "≤", ">": "&gt;", ">=": "≥", "==": "=", "!=": "≠", "+": "+", "-": "−", "*": "·"}
_NAMES = {
    "q_len": "<msub><mi>T</mi><mi>q</mi></msub>",
    "k_len": "<msub><mi>T</mi><mi>k</mi></msub>",
    "kv_h": "<msub><mi>h</mi><mtext>kv</mtext></msub>",
    "heads": "<msub><mi>H</mi><mi>q</mi></msub>",
    **{
        f"{side}_{end}": f"<msub><mi>{side}</mi><mtext>{end}</mtext></msub>"
        for side in "qk"
        for end in ("first", "last")
    },
}
_TALL = ("<mfrac", "<msqrt", "<msup", "<mtable")
_LONG = 8  # a number of more characters is shown as a fraction if it is a simple one


def mathml(node: Node, subscripts: Subscripts) -> str:
    """The markup of an expression, for use inside <math>."""
    return _Printer(subscripts).print(node).text


def name(text: str) -> str:
    """The markup of a name."""
    return _NAMES.get(text) or f"<mi>{html.escape(text)}</mi>"


def temporary(text: str) -> str:
    """The markup of a generated name such as t0: its number becomes a subscript."""
    stem = text.rstrip("0123456789")
    return f"<msub><mi>{html.escape(stem)}</mi><mn>{text[len(stem) :]}</mn></msub>"


def derivative(of: str, by: str) -> str:
    """The markup of a partial derivative of one quantity with respect to another, both given as markup."""
    return f"<mfrac>{row('<mo>∂</mo>', of)}{row('<mo>∂</mo>', by)}</mfrac>"


def row(*parts: str) -> str:
    """Markup side by side, as one element."""
    return f"<mrow>{''.join(parts)}</mrow>"


def fenced(opening: str, inner: str, closing: str) -> str:
    """Markup between brackets, which stretch if it is taller than a line."""
    stretchy = "true" if any(tag in inner for tag in _TALL) else "false"
    return row(f'<mo stretchy="{stretchy}">{opening}</mo>', inner, f'<mo stretchy="{stretchy}">{closing}</mo>')


def _word(text: str) -> str:
    return f"<mtext>\u00a0{text}\u00a0</mtext>"


def _operand(part: Text, precedence: int) -> str:
    return part.text if part.precedence >= precedence else fenced("(", part.text, ")")


class _Printer:
    def __init__(self, subscripts: Subscripts) -> None:
        self.subscripts = subscripts

    def print(self, node: Node) -> Text:
        op, args = node.op, node.args
        if op == "num":
            return _number(node)
        if op in printers.LEAVES:
            below = self.subscripts(node) if op == "input" else ""
            text = (temporary if op == "local" else name)(str(node.value))
            return Text(f"<msub>{text}{row(below)}</msub>" if below else text, printers.ATOM)
        if op in FUNCTIONS:
            return self._function(node)
        parts = [self.print(arg) for arg in args]
        if op in ("/", "//"):
            fraction = f"<mfrac>{row(parts[0].text)}{row(parts[1].text)}</mfrac>"
            if op == "//":
                return Text(fenced("⌊", fraction, "⌋"), printers.ATOM)
            return Text(fraction, printers.POWER)
        if op == "*" and args[0] == args[1]:
            return Text(f"<msup>{row(_operand(parts[0], printers.ATOM))}<mn>2</mn></msup>", printers.POWER)
        if op in ("+", "-", "*"):
            level = printers.BINARY[op]
            left, right = _operand(parts[0], level), _operand(parts[1], level + 1)
            return Text(row(left, f"<mo>{_SIGNS[op]}</mo>", right), level)
        if op == "%":
            left, right = _operand(parts[0], printers.PRODUCT), _operand(parts[1], printers.UNARY)
            return Text(row(left, _word("mod"), right), printers.PRODUCT)
        if op in COMPARISONS:
            left, right = (_operand(part, printers.SUM) for part in parts)
            return Text(row(left, f"<mo>{_SIGNS[op]}</mo>", right), printers.COMPARE)
        if op in ("and", "or"):
            level = printers.AND if op == "and" else printers.OR
            left, right = (_operand(part, level) for part in parts)
            return Text(row(left, _word(op), right), level)
        if op == "where":
            return Text(self._cases(node), printers.TERNARY)
        return self._one(node, parts)

    def _one(self, node: Node, parts: list[Text]) -> Text:
        """An operation on one number or condition, or a power."""
        match node.op:
            case "**":
                return Text(
                    f"<msup>{row(_operand(parts[0], printers.ATOM))}{row(parts[1].text)}</msup>", printers.POWER
                )
            case "neg":
                return Text(row("<mo>−</mo>", _operand(parts[0], printers.UNARY)), printers.UNARY)
            case "not":
                return Text(row("<mo>¬</mo>", _operand(parts[0], printers.ATOM)), printers.NOT)
        raise ValueError(f"no markup of {node.op!r}")

    def _function(self, node: Node) -> Text:
        args = _alike(node) if len(node.args) > 1 else list(node.args)
        if node.op == "floor" and args[0].op == "//":
            return self.print(args[0])
        inner = "<mo>,</mo>".join(self.print(arg).text for arg in args)
        opening, around, closing = FUNCTIONS[node.op].mathml.partition("{}")
        if not around:
            return Text(row(f"<mi>{opening}</mi>", fenced("(", inner, ")")), printers.ATOM)
        if not opening.startswith("<"):
            return Text(fenced(opening, inner, closing), printers.ATOM)
        return Text(opening + inner + closing, printers.POWER if opening.startswith("<msup") else printers.ATOM)

    def _cases(self, node: Node) -> str:
        """One line for each branch of nested choices."""
        lines: list[tuple[str, str]] = []
        while node.op == "where":
            condition, choice, node = node.args
            lines.append((self.print(choice).text, _word("if") + self.print(condition).text))
        lines.append((self.print(node).text, _word("otherwise")))
        cells = "".join(f"<mtr><mtd>{row(a)}</mtd><mtd>{row(b)}</mtd></mtr>" for a, b in lines)
        return row('<mo stretchy="true">{</mo>', f'<mtable class="cases">{cells}</mtable>')


def _number(node: Node) -> Text:
    if isinstance(node.value, bool):
        return Text(f"<mtext>{'true' if node.value else 'false'}</mtext>", printers.ATOM)
    if isinstance(node.value, float) and len(repr(node.value)) > _LONG:
        simple = Fraction(node.value).limit_denominator(64)
        if simple and float(simple) == node.value:
            inner = f"<mfrac><mn>{abs(simple.numerator)}</mn><mn>{simple.denominator}</mn></mfrac>"
            return Text(inner, printers.POWER) if simple > 0 else Text(row("<mo>−</mo>", inner), printers.UNARY)
    digits, _, exponent = repr(node.value).partition("e")
    negative = digits.startswith("-")
    text = f"<mn>{digits.lstrip('-').removesuffix('.0')}</mn>"
    if exponent:
        power = f"{'<mo>−</mo>' if int(exponent) < 0 else ''}<mn>{abs(int(exponent))}</mn>"
        text += f"<mo>·</mo><msup><mn>10</mn>{row(power)}</msup>"
    if negative:
        return Text(row("<mo>−</mo>", text), printers.UNARY)
    return Text(row(text), printers.PRODUCT) if exponent else Text(text, printers.ATOM)


def _alike(node: Node) -> list[Node]:
    """The arguments of nested calls of one function, as one list."""
    return [inner for arg in node.args for inner in (_alike(arg) if arg.op == node.op else [arg])]
