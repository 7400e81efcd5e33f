"""Values of expressions over arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..expressions.functions import FUNCTIONS
from ..expressions.tree import Node
from ..expressions.whole_numbers import floated


def evaluate(node: Node, env: Mapping[str, Any]) -> Any:
    """The value of an expression over numbers and arrays; `env` has the leaves by name."""
    import numpy as np

    with np.errstate(all="ignore"):
        return _value(node, env, dict.fromkeys(_shared(node)))


def _shared(node: Node) -> set[int]:
    """The identities of the operations that occur in an expression more than once."""
    once, again, left = set[int](), set[int](), [node]
    while left:
        part = left.pop()
        if part.args and id(part) in once:
            again.add(id(part))
        else:
            once.add(id(part))
            left += part.args
    return again


def _value(node: Node, env: Mapping[str, Any], shared: dict[int, Any]) -> Any:
    if node.op == "num":
        return node.value
    if node.op in ("var", "option", "local"):
        return env[str(node.value)]
    if (known := shared.get(id(node))) is not None:
        return known
    found = _result(node, [_value(arg, env, shared) for arg in node.args])
    if id(node) in shared:
        shared[id(node)] = found
    return found


def _result(node: Node, args: list[Any]) -> Any:
    """The value of an operation on values."""
    import numpy as np

    if floated(node):
        args[0] = np.asarray(args[0], float)
    match node.op:
        case "+":
            return args[0] + args[1]
        case "-":
            return args[0] - args[1]
        case "*":
            return args[0] * args[1]
        case "//" | "%" if node.type == "int":
            args[1] = args[1] + (args[1] == 0)  # division by 0 is as by 1
        case "**" if node.args[1].op == "num" and node.args[1].value == 2:
            return np.square(args[0])
    if function := FUNCTIONS.get(node.op):
        return function.numpy(np, *args)
    return getattr(np, _OPERATIONS[node.op])(*args)


_OPERATIONS = {
    "/": "true_divide", "//": "floor_divide", "%": "mod", "**": "power", "neg": "negative", "<": "less",
    "<=": "less_equal", ">": "greater", ">=": "greater_equal", "==": "equal", "!=": "not_equal", "and": "logical_and",
    "or": "logical_or", "not": "logical_not", "where": "where",
}  # fmt: skip
