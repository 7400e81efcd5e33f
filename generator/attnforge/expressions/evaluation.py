"""The value of an expression at one position, as tensors would compute it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping

from .folding import OPERATIONS
from .tree import Node


def _divided(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def _raised(a: float, b: float) -> float:
    power: float | complex = a**b
    return math.nan if isinstance(power, complex) else power


_OPERATIONS = OPERATIONS | {"/": _divided, "**": _raised}

Value = int | float | bool
Function = Callable[[Mapping[str, object]], Value]


def evaluate(node: Node, env: Mapping[str, object]) -> Value:
    """The value of an expression in Python's own arithmetic; `env` has the names, indexed inputs as callables."""
    return compiled(node)(env)


def compiled(node: Node) -> Function:
    """An expression as a function of the values of its names, for callers that evaluate it many times."""
    if node.op == "num":
        number = node.value
        assert isinstance(number, (int, float))
        return lambda env: number
    args = [compiled(arg) for arg in node.args]
    if node.op in ("var", "option", "input", "local"):
        # an input may be a callable, which computes a value only when it is read
        return _read(str(node.value), args) if node.op == "input" else operator.itemgetter(str(node.value))
    if node.op == "where":
        condition, chosen, other = args
        return lambda env: chosen(env) if condition(env) else other(env)
    if len(args) == 1:
        (only,), function = args, _OPERATIONS[node.op]
        return lambda env: function(only(env))
    first, second = args
    if node.op == "and":
        return lambda env: bool(first(env)) and bool(second(env))
    if node.op == "or":
        return lambda env: bool(first(env)) or bool(second(env))
    operation = _OPERATIONS[node.op]
    if node.args[1].op == "num":
        constant = node.args[1].value
        return lambda env: operation(first(env), constant)
    return lambda env: operation(first(env), second(env))


def _read(name: str, index: list[Function]) -> Function:
    def read(env: Mapping[str, object]) -> Value:
        value = env[name]
        if callable(value):
            value = value(*[place(env) for place in index])
        assert isinstance(value, (int, float))
        return value

    return read
