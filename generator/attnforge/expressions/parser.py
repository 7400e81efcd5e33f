"""Text of an expression -> its tree: a walk over Python's syntax tree that accepts only what it lists.

Nothing is evaluated, everything that is not listed here is refused, and every mistake is reported with its place.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..source import suggestions
from ..source.errors import Problems
from . import indices, whole_numbers
from .build import literal
from .folding import LARGEST, constant, whole_limit, whole_number
from .functions import FUNCTIONS
from .inputs import Input
from .syntax import Place, syntax
from .tree import Node, Type
from .vocabulary import CALLS, NAMES, Kind

LARGEST_FLOAT = 3.4e38  # about the largest float32
LARGEST_TABLE = 2**16  # entries of an axis of a table, at most
TALLEST = 100  # levels of a tree: joining many parts nests them, and later steps are recursive
MOST_NODES = 2000  # nodes of a tree, in which each use of a name from `let` counts as the whole part
ARGUMENTS = {name: function.count for name, function in CALLS.items()}
VARIABLES: dict[Kind, tuple[str, ...]] = {
    kind: tuple(name for name, known in NAMES.items() if kind in known.kinds)
    for kind in ("mask", "score", "default", "limit")
}
WORDS = frozenset(ARGUMENTS) | frozenset(NAMES)

_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**"}
_COMPARE = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_INSTEAD = {ast.BitAnd: ("&", "and"), ast.BitOr: ("|", "or"), ast.BitXor: ("^", "**"), ast.Invert: ("~", "not")}
_OTHERS = {ast.LShift: "<<", ast.RShift: ">>", ast.MatMult: "@", ast.Is: "is", ast.IsNot: "is not", ast.In: "in"}
_OTHERS |= {ast.NotIn: "not in"}
_FOREIGN = {
    ast.Attribute: "an attribute", ast.Lambda: "a lambda", ast.NamedExpr: "an assignment", ast.JoinedStr: "a string",
    ast.List: "a list", ast.Tuple: "a tuple", ast.Dict: "a dictionary", ast.Set: "a set", ast.Starred: "a star",
    ast.ListComp: "a comprehension", ast.SetComp: "a comprehension", ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a comprehension", ast.Await: "await", ast.Yield: "yield", ast.YieldFrom: "yield",
    ast.Slice: "a slice",
}  # fmt: skip


@dataclass(frozen=True)
class Runtime:
    """An option that the call sets."""

    keyword: str
    type: Literal["int", "float"]


@dataclass(frozen=True)
class Scope:
    """The names that an expression may use."""

    kind: Kind
    options: Mapping[str, int | float | bool | Runtime] = field(default_factory=dict)
    inputs: Mapping[str, Input] = field(default_factory=dict)
    wrong: Collection[str] = ()  # inputs whose declaration was refused: reading one is not another mistake
    parts: Mapping[str, Node] = field(default_factory=dict)  # names that `let` gives to parts of the expression
    closed: Mapping[str, str] = field(default_factory=dict)  # names that cannot be read here, with the message for each

    def names(self) -> Iterable[str]:
        """All names, functions included."""
        return [*VARIABLES[self.kind], *self.options, *self.inputs, *self.parts, *ARGUMENTS]


def part(text: str, scope: Scope, place: Place, problems: Problems) -> Node | None:
    """The tree of a part of an expression, of any type; None if a problem was added."""
    return _Walk(text, scope, place, problems).tree()


def parse(text: str, scope: Scope, place: Place, problems: Problems) -> Node | None:
    """The tree of an expression; None if a problem was added."""
    walk = _Walk(text, scope, place, problems)
    node = walk.tree()
    if node is None:
        return None
    if scope.kind == "mask":
        found = walk.need_bool(node, "a mask is a condition such as k <= q")
    else:
        example = f"a {scope.kind} is a number{' such as score + 1' if scope.kind == 'score' else ''}"
        found = walk.need_number(node, example)
    return found and whole_numbers.settled(found, scope.inputs.values(), walk.fail)


class _Walk:
    """Turns syntax into nodes; a method returns None if it added a problem."""

    def __init__(self, text: str, scope: Scope, place: Place, problems: Problems) -> None:
        self.text, self.scope, self.place, self.problems = text, scope, place, problems
        self.named = 0  # nodes inserted for names of parts
        self.large = False  # whether a problem was added for too many nodes

    def tree(self) -> Node | None:
        """The tree of the whole text."""
        tree = syntax(self.text, self.place, self.problems)
        return None if tree is None else self.visit(tree)

    def fail(self, at: ast.AST | Node, message: str) -> Node | None:
        """Adds a problem at a node; always None."""
        column = at.column if isinstance(at, Node) else int(getattr(at, "col_offset", 0))
        self.problems.add(self.place(column), message)
        return None

    def need_bool(self, node: Node | None, message: str) -> Node | None:
        """The node, if it is a condition."""
        if node is not None and node.type != "bool":
            self.fail(node, f"expected a condition, got a number: {message}")
            return None
        return node

    def need_number(self, node: Node | None, message: str) -> Node | None:
        """The node, if it is a number."""
        if node is not None and node.type == "bool":
            self.fail(node, f"expected a number, got a condition: {message}")
            return None
        return node

    def _inside(self, *trees: ast.expr) -> None:
        """Reports the mistakes inside parts of a refused expression."""
        for tree in trees:
            self.visit(tree)

    def visit(self, tree: ast.expr) -> Node | None:
        """The node of any expression."""
        handler = getattr(self, "visit_" + type(tree).__name__, None)
        if handler is None:
            self.fail(tree, f"{_FOREIGN.get(type(tree), 'this')} is not part of the language")
            return None
        node: Node | None = handler(tree)
        if node is None:
            return None
        levels, nodes = node.extent
        if levels > TALLEST:
            return self.fail(tree, f"this expression joins more than {TALLEST} parts")
        if nodes > MOST_NODES:
            return self._too_large(tree)
        value = constant(node)
        if value is None or isinstance(value, bool):
            return node
        # ints are compared with their own bound: a huge one cannot become a float
        if abs(value) > (LARGEST if node.type == "int" else LARGEST_FLOAT):
            if node.type == "float" or abs(value) >= 10**15:
                return self.fail(tree, "this number is too large")
            hint = f"; write {value}.0 for a float" if node.op == "num" else ""
            return self.fail(tree, f"whole numbers may go up to 2**28{hint}")
        if value != value:
            return self.fail(tree, "this has no value")
        # as a literal, so that a multiple of an option divides and bounds as a number does
        return whole_number(int(value), node.column) if node.type == "int" else node

    def visit_Constant(self, tree: ast.Constant) -> Node | None:
        value = tree.value
        if isinstance(value, bool):
            return Node("num", (), value, "bool", tree.col_offset)
        if isinstance(value, int):
            return Node("num", (), value, "int", tree.col_offset)
        if isinstance(value, float):
            return Node("num", (), value, "float", tree.col_offset)
        name = (
            "None"
            if value is None
            else {str: "a string", bytes: "a string", complex: "a complex number"}.get(type(value), "this")
        )
        self.fail(tree, f"{name} is not part of the language")
        return None

    def visit_Name(self, tree: ast.Name) -> Node | None:
        name, column = tree.id, tree.col_offset
        if name in self.scope.wrong:
            return None
        if name in self.scope.inputs:
            return self._input(tree, name, [])
        if name in self.scope.parts:
            return self._part(tree, self.scope.parts[name])
        if name in self.scope.options:
            option = self.scope.options[name]
            if isinstance(option, Runtime):
                return Node("option", (), option.keyword, option.type, column)
            if isinstance(option, int) and not isinstance(option, bool):
                return whole_number(option, column)
            kind: Type = "bool" if isinstance(option, bool) else "float"
            if option < 0:
                return Node("neg", (Node("num", (), -option, kind, column),), None, kind, column)
            return Node("num", (), option, kind, column)
        if name in VARIABLES[self.scope.kind]:
            return Node("var", (), name, "float" if name == "score" else "int", column)
        if name in ARGUMENTS:
            self.fail(tree, f"{name} is a function: write {name}(...)")
        elif name == "score":
            hint = ": there `score if score > 1 else -3e38` hides a key" if self.scope.kind == "mask" else ""
            self.fail(tree, f"only score terms can read score{hint}")
        else:
            self._unknown(tree, name)
        return None

    def _part(self, tree: ast.expr, found: Node) -> Node | None:
        self.named += found.extent[1]
        return self._too_large(tree) if self.named > MOST_NODES else found.moved(tree.col_offset)

    def _too_large(self, tree: ast.expr) -> Node | None:
        if self.large:
            return None
        self.large = True
        named = ", each name of `let` written out" if self.scope.parts else ""
        return self.fail(tree, f"this expression has more than {MOST_NODES} names, numbers and operations{named}")

    def _unknown(self, tree: ast.expr, name: str) -> Node | None:
        if name in self.scope.closed:
            return self.fail(tree, self.scope.closed[name])
        declared = ": what a call passes is declared under inputs" if self.scope.kind in ("mask", "score") else ""
        return self.fail(tree, f"unknown name {name!r}{suggestions.name(name, list(self.scope.names())) or declared}")

    def visit_Subscript(self, tree: ast.Subscript) -> Node | None:
        if not isinstance(tree.value, ast.Name):
            self.fail(tree, "only an input can be indexed")
            return None
        name = tree.value.id
        written = list(tree.slice.elts) if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        if name in self.scope.inputs and name not in self.scope.wrong:
            return self._input(tree, name, written)
        self._inside(*written)
        if name in self.scope.wrong:
            return None
        if name in self.scope.names():
            return self.fail(tree, f"{name} is not an input: it cannot be indexed")
        return self._unknown(tree, name)

    def _input(self, tree: ast.expr, name: str, written: list[ast.expr]) -> Node | None:
        given = self.scope.inputs[name]
        by_hand, right = given.written, indices.reading(given)
        if len(written) == len(given.axes):
            # all axes are indexed: those that need no index must have the implicit one
            for i, axis in enumerate(given.kinds):
                index = written[i]
                if i not in by_hand and not (isinstance(index, ast.Name) and index.id == indices.IMPLICIT[axis]):
                    return self.fail(index, f"wrong index of {name}: write {right}")
            written = [written[i] for i in by_hand]
        if len(written) != len(by_hand):
            if not given.axes:
                return self.fail(written[0], f"wrong index of {name}: {name} has no axes: write {name}")
            what = f"wrong index of {name}" if written else f"{name} needs an index"
            return self.fail(written[0] if written and not by_hand else tree, f"{what}: write {right}")
        places = [self._index(given, i, index) for i, index in zip(by_hand, written, strict=True)]
        if None in places:
            return None
        return Node("input", tuple(p for p in places if p), given.name, given.dtype, tree.col_offset)

    def _index(self, given: Input, axis: int, tree: ast.expr) -> Node | None:
        """The index of an axis, as a whole number."""
        node = self.need_number(self.visit(tree), "an index is a number")
        if node is None:
            return None
        if any(n.op == "var" and n.value == "score" for n in node.walk()):
            return self.fail(tree, "an index cannot depend on the score: it has no slope")
        found = indices.whole(node)
        if found is None:
            return self.fail(tree, f"an index of {given.name} is a whole number: write floor(...)")
        kind = given.kinds[axis]
        if kind != "token" or (found.op == "var" and found.value in ("q", "k")):
            return found
        if given.grad:
            hint = f"write {given.name}[q] or {given.name}[k]"
            return self.fail(tree, f"{given.name} has a gradient: its token axis is read at q and k only: {hint}")
        text = (ast.get_source_segment(self.text, tree) or ast.unparse(tree)).strip()
        why = indices.outside(given, text, found)
        return self.fail(tree, why) if why else found

    def visit_UnaryOp(self, tree: ast.UnaryOp) -> Node | None:
        node = self.visit(tree.operand)
        if type(tree.op) in _INSTEAD:
            return self._instead(tree, type(tree.op))
        if isinstance(tree.op, ast.Not):
            node = self.need_bool(node, "`not` turns a condition round")
            return node and Node("not", (node,), None, "bool", tree.col_offset)
        node = self.need_number(node, "conditions have no sign")
        if node is None or isinstance(tree.op, ast.UAdd):
            return node
        return Node("neg", (node,), None, node.type, tree.col_offset)

    def _instead(self, tree: ast.expr, op: type[ast.AST]) -> Node | None:
        sign, word = _INSTEAD[op]
        return self.fail(tree, f"{sign!r} is not part of the language (did you mean {word!r}?)")

    def visit_BinOp(self, tree: ast.BinOp) -> Node | None:
        op, sides = type(tree.op), (self.visit(tree.left), self.visit(tree.right))
        if op in _INSTEAD:
            return self._instead(tree, op)
        if op in _OTHERS:
            return self.fail(tree, f"{_OTHERS[op]!r} is not part of the language")
        sign = _BINARY[op]
        left = self.need_number(sides[0], f"{sign!r} takes numbers; conditions go into `a if c else b`")
        what = "division by a condition" if sign in ("/", "//", "%") else f"{sign!r} takes numbers"
        right = self.need_number(sides[1], f"{what}; conditions go into `a if c else b`")
        if left is None or right is None:
            return None
        if sign in ("/", "//", "%") and constant(right) == 0:
            return self.fail(right, "division by zero")
        kind: Type = "int" if left.type == right.type == "int" else "float"
        if sign == "/":
            kind = "float"
        if sign == "**":
            bound = constant(right)
            if bound is not None and abs(bound) > 64:
                return self.fail(right, "powers may go up to 64")
            power = literal(right)
            if not (left.type == "int" and isinstance(power, int) and power >= 0):
                kind = "float"
        return Node(sign, (left, right), None, kind, tree.col_offset)

    def visit_Compare(self, tree: ast.Compare) -> Node | None:
        sides = [self.visit(x) for x in (tree.left, *tree.comparators)]
        for op in tree.ops:
            if type(op) in _OTHERS:
                return self.fail(tree, f"{_OTHERS[type(op)]!r} is not part of the language")
        pairs = zip(tree.ops, sides, sides[1:], strict=False)
        found = [self._compared(_COMPARE[type(op)], a, b, tree.col_offset) for op, a, b in pairs]
        return self._nested("and", found, "bool", tree)

    def _compared(self, sign: str, a: Node | None, b: Node | None, column: int) -> Node | None:
        same = sign in ("==", "!=")
        if a and b and a.type == b.type == "bool" and same:
            # the smaller side is the one that occurs twice, or trees would double at each level
            chosen, twice = sorted((a, b), key=lambda side: side.extent[1], reverse=True)
            turned = Node("not", (twice,), None, "bool", twice.column)
            choices = (twice, turned) if sign == "==" else (turned, twice)
            return Node("where", (chosen, *choices), None, "bool", column)
        what = f"{sign!r} takes two numbers or two conditions" if same else "comparisons take numbers"
        left, right = self.need_number(a, what), self.need_number(b, what)
        if left is None or right is None:
            return None
        return Node(
            sign, (whole_limit(left, sign, right), whole_limit(right, _TURNED[sign], left)), None, "bool", column
        )

    def visit_BoolOp(self, tree: ast.BoolOp) -> Node | None:
        op = "and" if isinstance(tree.op, ast.And) else "or"
        parts = [self.need_bool(self.visit(x), f"`{op}` joins conditions") for x in tree.values]
        return self._nested(op, parts, "bool", tree)

    def visit_IfExp(self, tree: ast.IfExp) -> Node | None:
        return self._where(tree, tree.test, tree.body, tree.orelse)

    def _where(self, tree: ast.expr, condition: ast.expr, first: ast.expr, second: ast.expr) -> Node | None:
        c = self.need_bool(self.visit(condition), "the choice depends on a condition")
        a, b = self.visit(first), self.visit(second)
        if a is None or b is None or c is None:
            return None
        if (a.type == "bool") != (b.type == "bool"):
            return self.fail(b, "both choices have to be numbers, or both conditions")
        kind: Type = a.type if a.type == b.type else "float"
        return Node("where", (c, a, b), None, kind, tree.col_offset)

    def visit_Call(self, tree: ast.Call) -> Node | None:
        name = tree.func.id if isinstance(tree.func, ast.Name) else ""
        count = ARGUMENTS.get(name)
        miscounted = len(tree.args) < 2 if count is None else len(tree.args) != count
        if name not in ARGUMENTS or tree.keywords or miscounted:
            self._inside(*tree.args, *(given.value for given in tree.keywords))
        if not name:
            hint = suggestions.ALONE if isinstance(tree.func, ast.Attribute) else ""
            return self.fail(tree, f"only the language's own functions can be called{hint}")
        if name not in ARGUMENTS:
            if name in self.scope.names():
                return self.fail(tree, f"{name} is not a function")
            return self.fail(tree, f"unknown function {name!r}{suggestions.function(name, ARGUMENTS)}")
        if tree.keywords:
            return self.fail(tree.keywords[0], f"{name} takes no arguments by name")
        if miscounted:
            wanted = "2 or more arguments" if count is None else f"{count} argument{'s' if count > 1 else ''}"
            return self.fail(tree, f"{name} takes {wanted}, got {len(tree.args)}")
        if name == "where":
            return self._where(tree, *tree.args)
        args = [self.need_number(self.visit(arg), f"{name} takes numbers") for arg in tree.args]
        if name in ("min", "max"):
            return self._nested(name, args, None, tree)
        if name == "clamp":
            inner = self._nested("max", args[:2], None, tree)
            return self._nested("min", [inner, args[2]], None, tree)
        arg = args[0]
        if arg is None:
            return None
        return Node(name, (arg,), None, arg.type if FUNCTIONS[name].kind == "choice" else "float", tree.col_offset)

    def _nested(self, op: str, parts: Iterable[Node | None], kind: Type | None, tree: ast.expr) -> Node | None:
        found = list(parts)
        result = found[0]
        for part in found[1:]:
            if result is None or part is None:
                return None
            joined: Type = kind or (result.type if result.type == part.type else "float")
            result = Node(op, (result, part), None, joined, tree.col_offset)
        return result
