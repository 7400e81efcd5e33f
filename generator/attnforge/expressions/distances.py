"""Distances between queries and keys that kernels compute once: as floats, or as the integers that conditions read.

Kernels have two floats, `q_at` and `k_at`, whose difference is the distance between the positions. Expressions of this
difference are built here such that they are as exact as the integer, below 2**24, or rounded once, as the integer
converted to a float would be. Some kernels also have the distance as an integer, `distance`.
"""

from __future__ import annotations

import dataclasses

from .build import literal, num
from .linear_forms import Linear, atom, linear, variable
from .tree import COMPARISONS, Node

PLACES = {name: Node("local", (), f"{name}_at", "float", definition=variable(name)) for name in "qk"}
"""The two floats, by the position that each represents."""
DISTANCE = Node("local", (), "distance", "int", definition=Node("-", (variable("q"), variable("k")), None, "int"))
"""The distance from a key to a query, as an integer."""
NEAR, FAR = (Node("local", (), name, "int") for name in ("near", "far"))
"""A distance is near - far: `near` is known to the compiler for each register, `far` is one value per thread."""
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}  # the comparison with its sides swapped
_SMALL = 2**23  # the sum of a distance and of a number below this is exact


def as_floats(node: Node) -> Node:
    """An expression that is used as a float, with floats in place of all distances in it that are used as floats."""
    found = _rounded(node) if node.type == "int" else None
    return found or _inside(node)


def reads_places(node: Node) -> bool:
    """True if an expression reads `q_at` or `k_at`."""
    return any(n in PLACES.values() for n in node.walk())


def as_one(condition: Node) -> Node:
    """A condition with `distance` in place of its differences of a query's and a key's position."""
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
    """True if a condition only bounds the distance from a key to a query."""
    if condition.op == "and":
        return all(map(bounds_one, condition.args))
    made = as_one(condition)
    return made.op in _TURNED and made.args[0] == DISTANCE


def in_parts(condition: Node) -> Node | None:
    """A comparison of `distance` with a number, rewritten as one of `near`; None for other conditions."""
    if condition.op not in _TURNED or condition.args[0] != DISTANCE:
        return None
    form = linear(condition.args[1])
    if form.terms or abs(form.constant) > _SMALL:  # its sum with `far` could exceed 32 bits
        return None
    return dataclasses.replace(condition, args=(NEAR, (atom(FAR) + form.constant).node()))


def _signs(form: Linear) -> tuple[int, int]:
    """The factors of q and of k in a sum."""
    return form.factor(variable("q")), form.factor(variable("k"))


def _rest(form: Linear) -> Node:
    """A sum without the terms of q and of k."""
    return form.without(variable("q")).without(variable("k")).node()


def _inside(node: Node) -> Node:
    """`as_floats` for the arguments of an expression that keeps its own type."""
    if node.op == "input" or not node.args:
        return node
    real = node.type == "float" or (node.op in COMPARISONS and any(arg.type == "float" for arg in node.args))
    args = (as_floats(arg) if real or arg.type != "int" else _inside(arg) for arg in node.args)
    return dataclasses.replace(node, args=tuple(args))


def _rounded(node: Node) -> Node | None:
    """An integer expression of distances, computed as a float that is rounded at most once; None if it cannot be."""
    if node.op == "*":
        factors = [_exact(arg) or _number(arg, least=1) for arg in node.args]
        return _of_distances("*", factors)
    if node.op == "**" and literal(node.args[1]) == 2 and (base := _exact(node.args[0])):
        return Node("**", (base, node.args[1]))
    return _exact(node)


def _exact(node: Node) -> Node | None:
    """An integer expression of one distance, as an exact float without negative zeros; None if it cannot be."""
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
    """A sum that amounts to the difference of the positions plus a number, as a float; None for other sums."""
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
    """The operation on floats; None if an argument is missing or all of them are literals."""
    found = tuple(arg for arg in args if arg)
    return Node(op, found) if len(found) == len(args) and any(arg.op != "num" for arg in found) else None
