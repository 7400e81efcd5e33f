"""Distances of queries and keys where kernels work them out once: as floats, or as whole numbers that conditions read.

Kernels have two floats that are as far apart as the positions are, `q_at` and `k_at`. What is made of their difference
here is as exact as the whole number, below 2**24, or rounded once, as a float made of that would be. Some kernels have
the whole numbers, `distance`, as well.
"""

from __future__ import annotations

import dataclasses

from .build import literal, num
from .linear_forms import Linear, atom, linear, variable
from .tree import COMPARISONS, Node

PLACES = {name: Node("local", (), f"{name}_at", "float", definition=variable(name)) for name in "qk"}
"""The two floats, by the position that they stand for."""
DISTANCE = Node("local", (), "distance", "int", definition=Node("-", (variable("q"), variable("k")), None, "int"))
"""How far a key stands before a query."""
NEAR, FAR = (Node("local", (), name, "int") for name in ("near", "far"))
"""Parts of a distance, near - far: what a compiler knows of each register, and a number for all those of a thread."""
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}  # with the sides of a comparison the other way round
_SMALL = 2**23  # the sum of such a number and of a distance is exact


def as_floats(node: Node) -> Node:
    """An expression that a float is made of, with floats in place of all distances that floats are made of."""
    found = _rounded(node) if node.type == "int" else None
    return found or _inside(node)


def reads_places(node: Node) -> bool:
    """True if such an expression has such floats."""
    return any(n in PLACES.values() for n in node.walk())


def as_one(condition: Node) -> Node:
    """A condition, with `distance` in place of what it makes of a query's and a key's position."""
    if condition.op in COMPARISONS and {arg.type for arg in condition.args} == {"int"}:
        left, right = condition.args
        form = linear(left) - linear(right)
        match _signs(form):
            case (1, -1):
                return dataclasses.replace(condition, args=(DISTANCE, _rest(-form)))
            case (-1, 1):
                turned = _TURNED.get(condition.op, condition.op)
                return dataclasses.replace(condition, op=turned, args=(DISTANCE, _rest(form)))
    if condition.op == "input" or not condition.args:
        return condition
    if condition.type == "int" and _signs(form := linear(condition)) == (1, -1) and len(form.terms) == 2:
        return (atom(DISTANCE) + form.constant).node()
    return dataclasses.replace(condition, args=tuple(map(as_one, condition.args)))


def bounds_one(condition: Node) -> bool:
    """True if a condition does no more than bound how far a key stands before a query."""
    if condition.op == "and":
        return all(map(bounds_one, condition.args))
    made = as_one(condition)
    return made.op in _TURNED and made.args[0] == DISTANCE


def in_parts(condition: Node) -> Node | None:
    """A comparison of `distance` with a number, as one of `near`; None for others."""
    if condition.op not in _TURNED or condition.args[0] != DISTANCE:
        return None
    form = linear(condition.args[1])
    if form.terms or abs(form.constant) > _SMALL:  # a sum with `far` could pass 32 bits
        return None
    return dataclasses.replace(condition, args=(NEAR, (atom(FAR) + form.constant).node()))


def _signs(form: Linear) -> tuple[int, int]:
    """The factors of both positions in a sum."""
    return form.factor(variable("q")), form.factor(variable("k"))


def _rest(form: Linear) -> Node:
    """A sum without both positions."""
    return form.without(variable("q")).without(variable("k")).node()


def _inside(node: Node) -> Node:
    """The same of an expression that stays what it is."""
    if node.op == "input" or not node.args:
        return node
    real = node.type == "float" or (node.op in COMPARISONS and any(arg.type == "float" for arg in node.args))
    args = (as_floats(arg) if real or arg.type != "int" else _inside(arg) for arg in node.args)
    return dataclasses.replace(node, args=tuple(args))


def _rounded(node: Node) -> Node | None:
    """A whole number made of distances, as a float that is rounded once at most."""
    if node.op == "*":
        factors = [_exact(arg) or _number(arg, least=1) for arg in node.args]
        return _of_distances("*", factors)
    if node.op == "**" and literal(node.args[1]) == 2 and (base := _exact(node.args[0])):
        return Node("**", (base, node.args[1]))
    return _exact(node)


def _exact(node: Node) -> Node | None:
    """A whole number made of one distance, as a float that is as exact; its zeros have no sign."""
    if node.op in ("+", "-", "neg") and (found := _difference(node)):
        return found
    if node.op == "neg":
        return _of_distances("-", [num(0), _exact(node.args[0])])
    if node.op == "where":
        chosen = _of_distances("where", [_exact(arg) or _number(arg) for arg in node.args[1:]])
        return chosen and Node("where", (as_floats(node.args[0]), *chosen.args))
    if node.op not in ("+", "-", "abs", "min", "max"):
        return None
    args = [_exact(arg) or _number(arg) for arg in node.args]
    if node.op in ("+", "-") and not any(arg and arg.op == "num" for arg in args):
        return None  # the sum of two distances may be too large
    return _of_distances(node.op, args)


def _difference(node: Node) -> Node | None:
    """A sum that comes to the difference of both positions and a number."""
    form = linear(node)
    signs = _signs(form)
    if len(form.terms) != 2 or sorted(signs) != [-1, 1] or abs(form.constant) >= _SMALL:
        return None
    found = Node("-", (PLACES["q"], PLACES["k"]) if signs == (1, -1) else (PLACES["k"], PLACES["q"]))
    if not form.constant:
        return found
    return Node("+" if form.constant > 0 else "-", (found, num(abs(form.constant))))


def _number(node: Node, least: int = -_SMALL) -> Node | None:
    value = literal(node)
    return num(value) if node.type == "int" and value is not None and least <= value < _SMALL else None


def _of_distances(op: str, args: list[Node | None]) -> Node | None:
    """The operation on floats, if all are such and not all are literals."""
    found = tuple(arg for arg in args if arg)
    return Node(op, found) if len(found) == len(args) and any(arg.op != "num" for arg in found) else None
