"""The functions of the expression language: one record each, with everything that the program knows about it.

Printers and evaluators look functions up here, so a new function takes a record here and, if Triton or JavaScript
lacks it, a helper in templates/portable/expressions.jinja or templates/page/arithmetic.js.jinja.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .build import HALF, ONE, ZERO, add, call, compare, div, mul, neg, num, sub, where
from .tree import Node


@dataclass(frozen=True)
class Call:
    """The form of a call, and its meaning."""

    arguments: str
    meaning: str

    @property
    def count(self) -> int | None:
        """The number of arguments; None for two or more."""
        return None if "..." in self.arguments else len(self.arguments.split(","))


@dataclass(frozen=True, kw_only=True)
class Function(Call):
    """A function that is an operation of the tree; there, min and max have two arguments."""

    # smooth: a float for any number; choice: an argument or its negative, so an int for ints; flat: no slope
    kind: Literal["smooth", "choice", "flat"] = "smooth"
    finite: bool = False  # whether value and slope are finite for finite arguments
    value: Callable[..., Any]  # in Python's arithmetic, with infinity or NaN instead of an exception
    slope: Callable[..., Node] | None  # its derivative, from the node, its arguments and their derivatives
    triton: str  # a primitive with "tl." before it, or a helper
    hopper: bool = False  # whether templates/hopper has a faster version of this helper for tiles of scores
    torch: str  # the function of tensors
    python: str | None  # the function of Python numbers in torch text; None: torch's function, via a tensor
    javascript: str  # a function of Math, or a helper
    mathml: str  # its name, or the brackets or markup around its argument, {}
    numpy: Callable[..., Any]  # the result as an array, from the numpy module and the arguments


def _ieee(function: Callable[[float], float], pole: float | None = None) -> Callable[[float], float]:
    """The function with infinities and NaN instead of exceptions, as for tensors; at `pole` its value is -inf."""

    def safe(x: float) -> float:
        try:
            return -math.inf if x == pole else function(x)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    return safe


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def _extremum(wins: str, loses: str) -> Callable[..., Node]:
    """The slope of min or max, from the comparisons by which x wins or loses; a tie splits it half and half."""

    def slope(node: Node, x: Node, y: Node, dx: Node, dy: Node) -> Node:
        tie = mul(HALF, add(dx, dy))
        return where(compare(wins, x, y), dx, where(compare(loses, x, y), dy, tie))

    return slope


def _abs(node: Node, x: Node, dx: Node) -> Node:
    return where(compare(">", x, ZERO), dx, where(compare("<", x, ZERO), neg(dx), ZERO))


FUNCTIONS = {
    "exp": Function(
        "x",
        "e to the power of `x`",
        value=_ieee(math.exp),
        slope=lambda node, x, dx: mul(node, dx),
        triton="tl.exp",
        torch="torch.exp",
        python="math.exp",
        javascript="Math.exp",
        mathml="<msup><mi>e</mi><mrow>{}</mrow></msup>",
        numpy=lambda np, x: np.exp(x),
    ),
    "log": Function(
        "x",
        "the natural logarithm",
        value=_ieee(math.log, pole=0),
        slope=lambda node, x, dx: div(dx, x),
        triton="tl.log",
        torch="torch.log",
        python="math.log",
        javascript="Math.log",
        mathml="ln",
        numpy=lambda np, x: np.log(x),
    ),
    "log1p": Function(
        "x",
        "the natural logarithm of `1 + x`, with all digits of a small `x`",
        value=_ieee(math.log1p, pole=-1),
        slope=lambda node, x, dx: div(dx, add(ONE, x)),
        triton="log1p",
        torch="torch.log1p",
        python="math.log1p",
        javascript="Math.log1p",
        mathml="log1p",
        numpy=lambda np, x: np.log1p(x),
    ),
    "sqrt": Function(
        "x",
        "the square root",
        value=_ieee(math.sqrt),
        slope=lambda node, x, dx: div(mul(HALF, dx), node),
        triton="tl.sqrt",
        torch="torch.sqrt",
        python="math.sqrt",
        javascript="Math.sqrt",
        mathml="<msqrt>{}</msqrt>",
        numpy=lambda np, x: np.sqrt(x),
    ),
    "tanh": Function(
        "x",
        "the hyperbolic tangent",
        finite=True,
        value=math.tanh,
        slope=lambda node, x, dx: mul(sub(ONE, mul(node, node)), dx),
        triton="tanh",
        hopper=True,
        torch="torch.tanh",
        python="math.tanh",
        javascript="Math.tanh",
        mathml="tanh",
        numpy=lambda np, x: np.tanh(x),
    ),
    "sigmoid": Function(
        "x",
        "`1 / (1 + exp(-x))`",
        finite=True,
        value=_sigmoid,
        slope=lambda node, x, dx: mul(mul(node, sub(ONE, node)), dx),
        triton="tl.sigmoid",
        torch="torch.sigmoid",
        python=None,
        javascript="sigmoid",
        mathml="σ",
        numpy=lambda np, x: 0.5 * (1 + np.tanh(np.multiply(x, 0.5))),
    ),
    "softplus": Function(
        "x",
        "`log(1 + exp(x))`",
        finite=True,
        value=lambda x: max(x, 0) + math.log1p(math.exp(-abs(x))),
        slope=lambda node, x, dx: mul(call("sigmoid", x), dx),
        triton="softplus",
        torch="torch.nn.functional.softplus",
        python=None,
        javascript="softplus",
        mathml="softplus",
        numpy=lambda np, x: np.logaddexp(0.0, x),
    ),
    "erf": Function(
        "x",
        "the error function; `x * (1 + erf(x / sqrt(2))) / 2` is gelu",
        finite=True,
        value=math.erf,
        slope=lambda node, x, dx: mul(mul(num(2 / math.sqrt(math.pi)), call("exp", neg(mul(x, x)))), dx),
        triton="tl.erf",
        torch="torch.erf",
        python="math.erf",
        javascript="erf",
        mathml="erf",
        numpy=lambda np, x: np.vectorize(math.erf, otypes=[float])(x),
    ),
    "sin": Function(
        "x",
        "the sine of an angle in radians",
        finite=True,
        value=_ieee(math.sin),
        slope=lambda node, x, dx: mul(call("cos", x), dx),
        triton="tl.sin",
        torch="torch.sin",
        python="math.sin",
        javascript="Math.sin",
        mathml="sin",
        numpy=lambda np, x: np.sin(x),
    ),
    "cos": Function(
        "x",
        "the cosine of an angle in radians",
        finite=True,
        value=_ieee(math.cos),
        slope=lambda node, x, dx: neg(mul(call("sin", x), dx)),
        triton="tl.cos",
        torch="torch.cos",
        python="math.cos",
        javascript="Math.cos",
        mathml="cos",
        numpy=lambda np, x: np.cos(x),
    ),
    "abs": Function(
        "x",
        "the distance from 0",
        kind="choice",
        finite=True,
        value=abs,
        slope=_abs,
        triton="tl.abs",
        torch="torch.abs",
        python="abs",
        javascript="Math.abs",
        mathml="|{}|",
        numpy=lambda np, x: np.abs(x),
    ),
    "floor": Function(
        "x",
        "the largest whole number that is at most `x`; an index may be made with it",
        kind="flat",
        finite=True,
        value=lambda x: math.floor(x) if math.isfinite(x) else x,
        slope=None,
        triton="tl.floor",
        torch="torch.floor",
        python="math.floor",
        javascript="Math.floor",
        mathml="⌊{}⌋",
        numpy=lambda np, x: np.floor(x),
    ),
    "min": Function(
        "a, b, ...",
        "the least of two or more numbers",
        kind="choice",
        finite=True,
        value=min,
        slope=_extremum("<", ">"),
        triton="tl.minimum",
        torch="torch.minimum",
        python="min",
        javascript="Math.min",
        mathml="min",
        numpy=lambda np, a, b: np.minimum(a, b),
    ),
    "max": Function(
        "a, b, ...",
        "the largest of two or more numbers",
        kind="choice",
        finite=True,
        value=max,
        slope=_extremum(">", "<"),
        triton="tl.maximum",
        torch="torch.maximum",
        python="max",
        javascript="Math.max",
        mathml="max",
        numpy=lambda np, a, b: np.maximum(a, b),
    ),
}
