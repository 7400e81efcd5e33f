"""Expression -> Triton text for the kernels, expression -> torch text for the reference.

Both printers use as few brackets as Python's precedence allows. `leaf` gives the text of var, option, input and local
nodes, which must be valid wherever an atom is.

The text of `triton` expects `tl` in scope and the functions that `triton_helpers` names. The text of `torch` expects
`torch`, `math`, `dtype` (the floating type that integers are converted to), `_whole_floor` if an index contains a floor
and, if `limits` are given, `_divisor`: torch refuses to divide integers by 0, even if the quotient is not selected. In
torch text, q_len, k_len, heads and options are Python numbers, and every other leaf is a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ..expressions.folding import constant, fold
from ..expressions.functions import FUNCTIONS
from ..expressions.sharing import opposite
from ..expressions.tree import COMPARISONS, Node
from ..expressions.whole_numbers import SHORT, Range, Ranges, floated

Leaf = Callable[[Node], str]

LEAVES = frozenset({"var", "option", "input", "local"})
SMOOTH = frozenset(name for name, function in FUNCTIONS.items() if function.kind == "smooth")
SCALARS = frozenset({"q_len", "k_len", "heads"})
COUNTS = SCALARS | {"k", "b", "h", "kv_h"}  # never negative
_NUMBERS = SCALARS | {"q_begin"}  # Python numbers in torch text

TRITON_HELPERS = (
    *("as_float", "whole_floor", "floor_div", "floor_mod", "floor_mod_float", "integer_power", "power"),
    *(function.triton for function in FUNCTIONS.values()),
)
"""The jitted functions that Triton text may call, each after those that it calls."""

TERNARY, OR, AND, NOT, COMPARE, BIT_OR, BIT_AND, SUM, PRODUCT, UNARY, POWER, ATOM = range(12)
BINARY = {"+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "//": PRODUCT, "%": PRODUCT}

_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


class Text(NamedTuple):
    """Printed text and how tightly its outermost operator binds."""

    text: str
    precedence: int

    def within(self, precedence: int) -> str:
        """The text as an operand of an operator, in brackets if the operator binds tighter."""
        return self.text if self.precedence >= precedence else f"({self.text})"

    def narrowed(self) -> Text:
        """The text of an int64, converted to an int32."""
        return Text(f"{self.within(ATOM)}.to(tl.int32)", ATOM)


def triton(node: Node, leaf: Leaf, limits: Mapping[str, Range]) -> str:
    """Triton text of an expression; an integer is an int64 exactly if `limits` let it exceed an int32."""
    return _Triton(leaf, limits).print(fold(node)).text


def torch(
    node: Node, leaf: Leaf, limits: Mapping[str, Range] | None = None, *, atom: bool = False, total: bool = False
) -> str:
    """Torch text of an expression; `atom`: to be called or indexed; `total`: Python numbers raise no exceptions."""
    return _Torch(leaf, limits, total).print(node).within(ATOM if atom else TERNARY)


def triton_helpers(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The jitted helper functions that the Triton text of these nodes calls, in the order of their definition."""
    printer = _Triton(lambda node: "x", {})
    for node in nodes:
        for part in fold(node).walk():
            if part.op not in LEAVES:
                printer.print(part)
    if "power" in printer.helpers:
        printer.helpers.add("as_float")
    return tuple(name for name in TRITON_HELPERS if name in printer.helpers)


def _number(node: Node) -> Text:
    value = node.value
    if isinstance(value, str) or value is None or not math.isfinite(value):
        raise ValueError(f"not a finite number: {value!r}")
    if node.type == "float" and not isinstance(value, bool):
        value = float(value)
    text = repr(value)
    return Text(text, UNARY if text.startswith("-") else ATOM)


def _call(name: str, *args: Text) -> Text:
    return Text(f"{name}({', '.join(a.text for a in args)})", ATOM)


def _binary(op: str, precedence: int, left: Text, right: Text) -> Text:
    """A left-associative operator; the right side is bracketed at equal precedence, to round as the tree does."""
    return Text(f"{left.within(precedence)} {op} {right.within(precedence + 1)}", precedence)


def _compare(op: str, left: Text, right: Text) -> Text:
    return Text(f"{left.within(BIT_OR)} {op} {right.within(BIT_OR)}", COMPARE)


def _nested(op: str, precedence: int, left: Text, right: Text) -> Text:
    """`&` and `|`, which may nest without brackets on either side."""
    return Text(f"{left.within(precedence)} {op} {right.within(precedence)}", precedence)


def _count(node: Node) -> bool:
    """True if an integer is certain to be non-negative."""
    if node.op == "num":
        return isinstance(node.value, int) and node.value >= 0
    if node.op == "var":
        return node.value in COUNTS
    if node.op in ("+", "*", "min"):
        return all(map(_count, node.args))
    if node.op == "//":
        return _count(node.args[0]) and _positive(node.args[1])
    if node.op == "%":
        return _positive(node.args[1])
    if node.op == "max":
        return any(map(_count, node.args))
    if node.op == "where":
        return all(map(_count, node.args[1:]))
    return node.op == "abs"


def _positive(node: Node) -> bool:
    if node.op == "num":
        return isinstance(node.value, int) and node.value > 0
    return node.op == "var" and node.value in SCALARS


def _without_sign(extreme: Node) -> Node | None:
    """max(a, -b) as a - min(a + b, 0): ptxas up to 13.3, for sm_90 and later, loses the sign in a maximum of three."""
    if extreme.type != "int":
        return None
    zero, op = Node("num", (), 0, "int"), "min" if extreme.op == "max" else "max"
    for a, b in (extreme.args, extreme.args[::-1]):
        if (positive := opposite(b)) is not None:
            total = Node("+", (a, positive), None, "int")
            return Node("-", (a, Node(op, (total, zero), None, "int")), None, "int")
    return None


def _widened(node: Node) -> Node:
    """An operation on integers with one of them converted to an int64, so that it is computed in int64."""
    at = next((i for i, arg in enumerate(node.args) if arg.type == "int" and arg.op != "num"), 1)
    args = [Node("long", (arg,), None, "int") if i == at else arg for i, arg in enumerate(node.args)]
    return Node(node.op, tuple(args), node.value, node.type)


class _Triton:
    def __init__(self, leaf: Leaf, limits: Mapping[str, Range]) -> None:
        self.leaf, self.ranges, self.helpers = leaf, Ranges(limits), set[str]()

    def print(self, node: Node) -> Text:
        """The text of any expression, with integers in types that hold them."""
        values = [a for a in node.args if a.type == "int"]
        whole = node.type == "int" or (node.op in COMPARISONS and len(values) == 2)
        if not whole or node.op in (*LEAVES, "num", "long"):
            return self._print(node)
        # a constant takes the type of the other operand, and must fit into that
        long, far = (any(self._long(a) for a in values if (a.op == "num") == constant) for constant in (False, True))
        wide = node.type == "int" and self._long(node)
        text = self._print(_widened(node) if (wide or far) and not long else node)
        return text.narrowed() if node.type == "int" and (long or far) and not wide else text

    def _long(self, node: Node) -> bool:
        return not self.ranges.within(node, SHORT)

    def _print(self, node: Node) -> Text:
        op, args = node.op, node.args
        if op == "num":
            return _number(node)
        if op in LEAVES:
            return Text(self.leaf(node), ATOM)
        if op == "long":
            return self._tl("cast", self.print(args[0]), Text("tl.int64", ATOM))
        if op in SMOOTH:
            return self._function(op, self._real(args[0]))
        if op == "floor":
            return self._floor(node)
        if op in ("//", "%"):
            return self._divide(node)
        if op == "**":
            return self._power(node)
        if op == "not" and args[0].op in COMPARISONS and all(a.type == "int" for a in args[0].args):
            return self.print(Node(_OPPOSITE[args[0].op], args[0].args, type="bool"))
        if op in ("min", "max") and (other := _without_sign(node)):
            text = self.print(other)
            # the range of the difference can be wider than that of the min or max that it replaces
            return text.narrowed() if self._long(other) and not self._long(node) else text
        parts = tuple(map(self._real if floated(node) else self.print, args))
        if op in BINARY:
            return _binary(op, BINARY[op], *parts)
        if op in COMPARISONS:
            return _compare(op, *parts)
        if op in ("and", "or"):
            return _nested(*(("&", BIT_AND) if op == "and" else ("|", BIT_OR)), *parts)
        if op in ("neg", "not"):
            return Text(("-" if op == "neg" else "~") + parts[0].within(UNARY), UNARY)
        return self._function(op, *parts) if op in FUNCTIONS else self._tl(op, *parts)

    def _function(self, op: str, *args: Text) -> Text:
        name = FUNCTIONS[op].triton
        return _call(name, *args) if name.startswith("tl.") else self._helper(name, *args)

    def _tl(self, name: str, *args: Text) -> Text:
        return _call("tl." + name, *args)

    def _helper(self, name: str, *args: Text) -> Text:
        self.helpers.add(name)
        return _call(name, *args)

    def _real(self, node: Node) -> Text:
        """The operand as a float: tl's functions refuse integers."""
        if node.op == "num" and isinstance(node.value, int):
            return _number(Node("num", (), float(node.value)))
        return self.print(node) if node.type == "float" else self._helper("as_float", self.print(node))

    def _floor(self, node: Node) -> Text:
        if node.args[0].type != "float":
            return self.print(node.args[0]) if node.type == "int" else self._real(node.args[0])
        inner = self.print(node.args[0])
        return self._helper("whole_floor", inner) if node.type == "int" else self._function("floor", inner)

    def _divide(self, node: Node) -> Text:
        left, right = node.args
        if left.type == right.type == "int":
            if _count(left) and _positive(right):
                return _binary(node.op, PRODUCT, self.print(left), self.print(right))
            return self._helper("floor_div" if node.op == "//" else "floor_mod", self.print(left), self.print(right))
        if node.op == "%":
            return self._helper("floor_mod_float", self._real(left), self._real(right))
        return self._tl("floor", _binary("/", PRODUCT, self._real(left), self._real(right)))

    def _power(self, node: Node) -> Text:
        base, exponent = node.args
        if exponent.op != "num":
            power = self._helper("power", self.print(base), self.print(exponent))
            return Text(f"tl.floor({power.text} + 0.5).to(tl.int32)", ATOM) if node.type == "int" else power
        value = exponent.value
        if value == 0.5:
            return self._tl("sqrt", self._real(base))
        if isinstance(value, str) or value is None or value != int(value) or abs(value) > 64:
            return self._helper("power", self.print(base), self.print(exponent))
        if value == 0:
            return _number(Node("num", (), 1, node.type))
        text = self._real(base) if node.type == "float" else self.print(base)
        times = abs(int(value))
        if times <= 3 and (times == 1 or base.op in LEAVES):
            result = Text(" * ".join([text.within(PRODUCT)] * times), PRODUCT if times > 1 else text.precedence)
        else:
            result = self._helper("integer_power", text, Text(str(times), ATOM))
        return _binary("/", PRODUCT, Text("1.0", ATOM), result) if value < 0 else result


class _Torch:
    def __init__(self, leaf: Leaf, limits: Mapping[str, Range] | None, total: bool) -> None:
        self.leaf, self.ranges, self.total = leaf, None if limits is None else Ranges(limits), total

    def print(self, node: Node) -> Text:
        if node.op == "num":
            return _number(node)
        if node.op in LEAVES:
            return Text(self.leaf(node), ATOM)
        return self._scalar(node) if is_scalar(node) else self._tensor(node)

    def _scalar(self, node: Node) -> Text:
        """Python text for an operation on Python numbers."""
        op, args = node.op, node.args
        parts = tuple(map(self.print, args))
        if floated(node):
            parts = (Text(f"float({parts[0].text})", ATOM), *parts[1:])
        number = f"torch.tensor({parts[0].text}, dtype=torch.float64)"  # its functions raise no exceptions
        if self.total and op in ("/", "//", "%", "**") and node.type == "float" and not _safe(op, args):
            return Text(f"({number} {op} {parts[1].within(ATOM)}).item()", ATOM)
        if self.total and op in ("//", "%") and node.type == "int" and self._may_be_0(args[1]):
            parts = (parts[0], Text(f"({parts[1].within(AND)} or 1)", ATOM))
        if op in BINARY:
            return _binary(op, BINARY[op], *parts)
        if op in COMPARISONS:
            return _compare(op, *parts)
        if op == "**":
            return Text(f"{parts[0].within(ATOM)} ** {parts[1].within(UNARY)}", POWER)
        if op == "neg":
            return Text("-" + parts[0].within(UNARY), UNARY)
        if op == "not":
            return Text("not " + parts[0].within(NOT), NOT)
        if op in ("and", "or"):
            return _nested(op, AND if op == "and" else OR, *parts)
        if op == "where":
            return Text(f"{parts[1].within(OR)} if {parts[0].within(OR)} else {parts[2].within(TERNARY)}", TERNARY)
        function = FUNCTIONS[op]
        if function.python is None or (self.total and function.kind != "choice" and not _safe(op, args)):
            called = "_whole_floor" if op == "floor" and node.type == "int" else function.torch
            return Text(f"{called}({number}).item()", ATOM)
        return _call(function.python, *parts)

    def _tensor(self, node: Node) -> Text:
        op, args = node.op, node.args
        if op in SMOOTH:
            return _call(FUNCTIONS[op].torch, self._real(args[0]))
        if op == "floor":
            return _call("_whole_floor" if node.type == "int" else FUNCTIONS[op].torch, self._real(args[0]))
        if op == "where":
            return self._where(node)
        if op in ("min", "max"):
            return _call(FUNCTIONS[op].torch, *(self._as_tensor(a, like=node) for a in args))
        if op in BINARY:
            left, right = self._operands(node)
            if op == "//" and node.type == "float":
                left, right = _detached(node.args[0], left), _detached(node.args[1], right)
            if op in ("//", "%") and node.type == "int" and self._may_be_0(node.args[1]):
                right = _call("_divisor", right)
            return _binary(op, BINARY[op], left, right)
        if op == "**":
            base, exponent = self._operands(node)
            return Text(f"{base.within(ATOM)} ** {exponent.within(UNARY)}", POWER)
        parts = tuple(map(self.print, args))
        if op in COMPARISONS:
            return _compare(op, *parts)
        if op in ("and", "or"):
            return _nested(*(("&", BIT_AND) if op == "and" else ("|", BIT_OR)), *parts)
        if op in ("neg", "not"):
            return Text(("-" if op == "neg" else "~") + parts[0].within(UNARY), UNARY)
        return _call(FUNCTIONS[op].torch, *parts)

    def _may_be_0(self, divisor: Node) -> bool:
        # with a length of 0 there is no position at which to divide
        if self.ranges is None or (divisor.op == "var" and divisor.value in SCALARS):
            return False
        return self.ranges.may_be_0(divisor)

    def _real(self, node: Node) -> Text:
        text = self.print(node)
        return text if node.type == "float" or is_scalar(node) else Text(text.within(ATOM) + ".to(dtype)", ATOM)

    def _operands(self, node: Node) -> tuple[Text, Text]:
        """Both sides, as floats of `dtype` if torch would convert integer tensors to its default float type."""
        left, right = node.args
        if node.type == "float" and not any(a.type == "float" and not is_scalar(a) for a in node.args):
            return self._real(left), self._real(right)
        return self.print(left), self.print(right)

    def _as_tensor(self, node: Node, like: Node | None = None) -> Text:
        """The operand as a tensor, even if it is a Python number, for functions that accept only tensors."""
        if not is_scalar(node):
            return self.print(node)
        dtype = "" if like is not None and like.type != "float" else ", dtype=dtype"
        return Text(f"torch.as_tensor({self.print(node).text}{dtype})", ATOM)

    def _where(self, node: Node) -> Text:
        condition, *choices = node.args
        a, b = (self._real(c) if node.type == "float" else self.print(c) for c in choices)
        if is_scalar(condition):
            a, b = (self._as_tensor(c, like=node) if is_scalar(c) else x for c, x in zip(choices, (a, b), strict=True))
            return Text(f"{a.within(OR)} if {self.print(condition).within(OR)} else {b.within(TERNARY)}", TERNARY)
        if node.type == "float" and all(map(is_scalar, choices)):
            a = self._as_tensor(choices[0])
        return Text(f"torch.where({self.print(condition).text}, {a.text}, {b.text})", ATOM)


def _detached(node: Node, text: Text) -> Text:
    """The operand of a `//`, detached: the operation is flat, and torch refuses to differentiate it."""
    learns = any(n.op in LEAVES and n.type == "float" and not is_scalar(n) for n in node.walk())
    return Text(text.within(ATOM) + ".detach()", ATOM) if learns else text


def _safe(op: str, args: tuple[Node, ...]) -> bool:
    """True if an operation on Python numbers is certain to raise no exception: lengths are at least 1."""
    if op in ("exp", "**"):
        return all(constant(arg) is not None for arg in args)
    return args[-1].op == "var" or constant(args[-1]) is not None


def is_scalar(node: Node) -> bool:
    """True if the torch text of a node is a Python number: it contains no tensor."""
    if node.op == "var":
        return node.value in _NUMBERS
    if node.op in ("input", "local"):
        return False
    return all(map(is_scalar, node.args))
