"""The parts of random expressions: choices, texts, and the inputs that they read."""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

T = TypeVar("T")
TERNARY, OR, AND, NOT, COMPARE, SUM, PRODUCT, UNARY, POWER, ATOM = range(10)
LEVELS = {"+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "//": PRODUCT, "%": PRODUCT}
INDEX = {"batch": "b", "head": "h", "kv_head": "kv_h", "query": "q", "key": "k"}
NAMES = ("alpha", "beta", "gamma", "w", "part1", "slope0", "x0", "n2", "fade", "seg", "omega", "k_sum0")
MOST_INPUTS = 5


class Draw:
    """Random choices that depend only on the seed: Python only guarantees that `random()` stays reproducible."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed).random

    def below(self, end: int) -> int:
        """A whole number from 0 to end - 1."""
        return int(self._random() * end)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability

    def pick(self, among: Sequence[T]) -> T:
        """One of the items."""
        return among[self.below(len(among))]


class Text(NamedTuple):
    """The text of an expression and how tightly its outermost operator binds."""

    text: str
    level: int = ATOM

    def within(self, level: int) -> str:
        """The text as an operand, in parentheses only if needed."""
        return self.text if self.level >= level else f"({self.text})"


def binary(op: str, a: Text, b: Text) -> Text:
    """a op b, for arithmetic, comparisons, and, or."""
    if op in LEVELS:
        return Text(f"{a.within(LEVELS[op])} {op} {b.within(LEVELS[op] + 1)}", LEVELS[op])
    level = {"and": AND, "or": OR}.get(op, COMPARE)
    return Text(f"{a.within(level + 1)} {op} {b.within(level + 1)}", level)


def call(name: str, *args: Text) -> Text:
    """A call of a function."""
    return Text(f"{name}({', '.join(a.text for a in args)})")


def negated(a: Text) -> Text:
    """-a."""
    return Text(f"-{a.within(UNARY)}", UNARY)


def opposite(a: Text) -> Text:
    """not a."""
    return Text(f"not {a.within(NOT)}", NOT)


def power(a: Text, b: Text) -> Text:
    """a ** b."""
    return Text(f"{a.within(ATOM)} ** {b.within(UNARY)}", POWER)


def chosen(condition: Text, a: Text, b: Text) -> Text:
    """a if condition else b."""
    return Text(f"{a.within(OR)} if {condition.within(OR)} else {b.within(TERNARY)}", TERNARY)


@dataclass(frozen=True)
class Declared:
    """An input that the expressions read."""

    name: str
    axes: tuple[str, ...]  # as in a spec: "head", "32", "key // 16", "batch % 2"
    dtype: str = "float"
    grad: bool = False
    scan: bool = False
    default: str | None = None

    @property
    def yaml(self) -> str:
        """The declaration as in a spec."""
        axes = (f'"{axis}"' if " " in axis else axis for axis in self.axes)
        parts = [f"axes: [{', '.join(axes)}]", f"dtype: {self.dtype}"]
        parts += ["grad: true"] if self.grad else []
        parts += ["scan: cumsum"] if self.scan else []
        plain = re.fullmatch("-?[0-9.]+|true|false", self.default or "")
        parts += [f"default: {self.default}" if plain else f'default: "{self.default}"'] if self.default else []
        return f"{self.name}: {{{', '.join(parts)}}}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The axes without their sizes."""
        return tuple("size" if axis.isdigit() else axis.split()[0] for axis in self.axes)

    @property
    def written(self) -> tuple[str, ...]:
        """The axes that an expression has to index explicitly."""
        kinds = self.kinds
        by_hand = {"token", "size"} | {kind for kind in kinds if kinds.count(kind) > 1}
        return tuple(axis for axis, kind in zip(self.axes, kinds, strict=True) if kind in by_hand)

    @property
    def rows(self) -> bool:
        """Whether it differs from position to position."""
        return bool({"query", "key", "token"} & set(self.kinds))


class Inputs(ABC):
    """The inputs of a spec, declared as its expressions need them."""

    def __init__(self, draw: Draw, packed: bool) -> None:
        self.draw, self.packed = draw, packed
        self.shared = Draw("shared")  # chooses which batch entries share an entry
        self.inputs: dict[str, Declared] = {}
        self.scoring = False  # a mask reads no input that has a gradient

    @abstractmethod
    def integer(self, depth: int) -> Text:
        """A whole number of moderate size."""

    def read(self, dtype: str) -> tuple[Text, Declared] | None:
        """An input as an expression reads it; None if there are enough inputs and none fits."""
        known = [x for x in self.inputs.values() if x.dtype == dtype and (self.scoring or not x.grad)]
        if len(self.inputs) < MOST_INPUTS and (not known or self.draw.chance(0.5)):
            given = self._declare(dtype)
        elif known:
            given = self.draw.pick(known)
        else:
            return None
        index = [self._index(axis, given) for axis in given.written]
        if not index and given.axes and self.draw.chance(0.3):
            index = [INDEX[kind] for kind in given.kinds]
        return Text(given.name + (f"[{', '.join(index)}]" if index else "")), given

    def per_head(self) -> tuple[Text, Declared] | None:
        """An integer input per head or key head; None if there are enough inputs."""
        if len(self.inputs) >= MOST_INPUTS:
            return None
        axes = self.draw.pick((("head",), ("kv_head",), ("batch", "head"), ("kv_head", "batch")))
        name = self._unused()
        self.inputs[name] = Declared(name, axes, "int")
        return Text(name), self.inputs[name]

    def _unused(self) -> str:
        return self.draw.pick([name for name in NAMES if name not in self.inputs])

    def _index(self, axis: str, given: Declared) -> str:
        draw = self.draw
        if axis == "token":
            free = not given.grad and not given.scan and draw.chance(0.2)
            return draw.pick(("max(k - 1, 0)", "min(q + 1, k_len - 1)", "k // 2")) if free else draw.pick("qk")
        if not axis.isdigit():
            return draw.pick(("q", "k", "k", "q - 1"))
        last = int(axis) - 1
        ways: tuple[Callable[[], str], ...] = (
            lambda: f"min(abs(q - k), {last})",
            lambda: f"clamp(k - q + {last // 2}, 0, {last})",
            lambda: f"(q - k) % {axis}",
            lambda: f"k // {draw.pick((1, 3, 8))}",
            lambda: f"floor(abs(q - k) / {draw.pick((2, 4, 8))})",
            lambda: f"h + k % {axis}",
            lambda: self.integer(1).text,
        )
        return draw.pick(ways)()

    def _declare(self, dtype: str) -> Declared:
        draw = self.draw
        axes = [axis for axis in (draw.pick(("", "batch")), draw.pick(("", "head", "kv_head"))) if axis]
        way = draw.below(10)
        if way == 0 and not self.packed:
            axes += draw.pick((["query", "key"], ["query", "key"], ["key", "query"]))
        elif way == 1 and not self.packed:
            axes += draw.pick((["query // 16", "key // 16"], ["key // 7"], ["query // 5"], ["query // 64", "key"]))
        elif way == 2 and not self.packed:
            axes += draw.pick((["query", "query"], ["key", "key"]))
        elif way in (3, 4):
            axes += draw.pick((["8"], ["40"], ["33"], ["3", "5"], ["query", "9"], ["key", "4"], ["6", "token"]))
        else:
            axes += [axis for axis in (draw.pick(("", "query", "key", "token", "token")),) if axis]
        if draw.chance(0.4):
            axes.reverse()
        plain = Declared("", tuple(axes))
        rows = [kind for kind in plain.kinds if kind in ("query", "key", "token")]
        flat = (
            any(" " in axis for axis in axes)
            or len(rows) != len(set(rows))
            or (len(rows) > 1 and "size" in plain.kinds)
        )
        grad = dtype == "float" and self.scoring and bool(axes) and not flat and draw.chance(0.7)
        scan = dtype == "float" and self.scoring and plain.written == ("token",) and draw.chance(0.3)
        default = None
        if axes == ["head"] and dtype != "bool" and draw.chance(0.5):
            default = draw.pick(("h % 3", "(h + 1) // 2") if dtype == "int" else ("0.5 / (h + 1)", "1 - h / heads"))
        elif axes and draw.chance(0.2):
            default = draw.pick({"int": ("0", "3", "-2"), "bool": ("true", "false")}.get(dtype, ("0", "0.75", "-0.5")))
        if "batch" in axes and not (self.packed or scan):
            ways = ("batch // 2", "batch % 2", "batch // 3", "batch % 3", "batch")
            axes[axes.index("batch")] = self.shared.pick(ways)
        name = self._unused()
        self.inputs[name] = Declared(name, tuple(axes), dtype, grad, scan, default)
        return self.inputs[name]
