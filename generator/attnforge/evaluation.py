"""The value of an expression at one place, as tensors would have it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping

from .expression import Node


def _ieee(function: Callable[..., float], overflow: float) -> Callable[..., float]:
    """The function with infinities and NaN in place of exceptions, as tensors have them."""

    def safe(*args: float) -> float:
        try:
            return function(*args)
        except OverflowError:
            return overflow
        except ValueError:
            return math.nan

    return safe


def _divided(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


_OPERATIONS: dict[str, Callable[..., int | float | bool]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divided,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "neg": operator.neg,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "not": operator.not_,
    "abs": abs,
    "min": min,
    "max": max,
    "floor": math.floor,
    "exp": _ieee(math.exp, math.inf),
    "log": lambda x: -math.inf if x == 0 else _ieee(math.log, math.inf)(x),
    "sqrt": _ieee(math.sqrt, math.inf),
    "tanh": math.tanh,
    "sigmoid": lambda x: 0.5 * (1 + math.tanh(x / 2)),
    "softplus": lambda x: max(x, 0) + math.log1p(math.exp(-abs(x))),
    "sin": _ieee(math.sin, math.nan),
    "cos": _ieee(math.cos, math.nan),
}


def evaluate(node: Node, env: Mapping[str, object]) -> int | float | bool:
    """The value of an expression in Python's own arithmetic; names stand in `env`, an indexed input as a callable."""
    if node.op == "num":
        assert isinstance(node.value, (int, float))
        return node.value
    if node.op in ("var", "option", "input", "local"):
        value = env[str(node.value)]
        if callable(value):
            value = value(*(evaluate(arg, env) for arg in node.args))
        assert isinstance(value, (int, float))
        return value
    if node.op in ("and", "or"):
        first = bool(evaluate(node.args[0], env))
        return first if first == (node.op == "or") else bool(evaluate(node.args[1], env))
    if node.op == "where":
        return evaluate(node.args[1 if evaluate(node.args[0], env) else 2], env)
    return _OPERATIONS[node.op](*(evaluate(arg, env) for arg in node.args))
