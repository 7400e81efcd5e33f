"""Evaluates expressions in Python itself, for one pair of a query and a key."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from formulas import bucket
from random_inputs import Declared, Draw, Text

FUNCTIONS: dict[str, object] = {
    **{name: getattr(math, name) for name in ("exp", "log", "log1p", "sqrt", "tanh", "erf", "floor", "sin", "cos")},
    "sigmoid": lambda x: 0.5 + 0.5 * math.tanh(x / 2),
    "softplus": lambda x: max(x, 0) + math.log1p(math.exp(-abs(x))),
    "clamp": lambda x, low, high: min(max(x, low), high),
    "where": lambda condition, a, b: a if condition else b,
    "bucket": bucket,
}


class Read(float):
    """A number that may be indexed."""

    def __getitem__(self, index: object) -> float:
        return float(self)


class Table:
    """Numbers that are read at an explicit index."""

    def __init__(self, at: Callable[[tuple[int, ...]], float]) -> None:
        self._at = at

    def __getitem__(self, index: float | tuple[float, ...]) -> float:
        return self._at(tuple(int(i) for i in (index if isinstance(index, tuple) else (index,))))


def named(given: Declared, at: Callable[[tuple[int, ...]], float]) -> Read | Table:
    """The object that stands for an input in an expression; `at` returns its number here for an explicit index."""
    return Table(at) if given.written else Read(at(()))


@dataclass(frozen=True)
class Place:
    """A query and a key of a sequence."""

    b: int
    h: int
    kv_h: int
    q: int
    k: int
    q_len: int
    k_len: int
    starts: tuple[int, int] | None = None  # offsets of the sequence's queries and keys in packed tensors

    @property
    def row(self) -> int:
        """The query's row in its sequence."""
        return self.q - (self.k_len - self.q_len)

    def env(self) -> dict[str, Any]:
        """The names that every expression may use."""
        return FUNCTIONS | {key: getattr(self, key) for key in ("b", "h", "kv_h", "q", "k", "q_len", "k_len")}

    def names(self, inputs: Mapping[str, Any], declared: Iterable[Declared]) -> dict[str, Any]:
        """The names that expressions may use in a call with these arguments."""
        tensors = [given for given in declared if isinstance(inputs.get(given.name), torch.Tensor)]
        env = self.env() | {name: x for name, x in inputs.items() if not isinstance(x, torch.Tensor)}
        return env | {x.name: named(x, functools.partial(self._read, x, inputs[x.name])) for x in tensors}

    def product(self, q: torch.Tensor, k: torch.Tensor) -> float:
        """The product of query and key."""
        if self.starts:
            return float(q[self.starts[0] + self.row, self.h] @ k[self.starts[1] + self.k, self.kv_h])
        return float(q[self.b, self.row, self.h] @ k[self.b, self.k, self.kv_h])

    def _read(self, given: Declared, x: torch.Tensor, index: tuple[int, ...]) -> float:
        return float(x[tuple(slice(first, past) for first, past in self.locate(given, index))].sum())

    def locate(self, given: Declared, index: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """The first entry and the one past the last, along each axis, of an input that is read at an explicit index."""
        here = {"batch": self.b, "head": self.h, "kv_head": self.kv_h, "query": self.row, "key": self.k}
        counts = {"query": self.q_len, "key": self.k_len, "token": self.k_len}
        q_start, k_start = self.starts or (0, 0)
        begins = {"query": q_start, "key": k_start, "token": k_start}
        found, written = [], list(index)
        for axis, kind in zip(given.axes, given.kinds, strict=True):
            if kind == "batch" and self.starts and given.rows:
                continue
            if axis in given.written:
                place = written.pop(0) - (self.k_len - self.q_len if kind == "query" else 0)
                place = min(max(place, 0), (int(axis) if axis.isdigit() else counts[kind]) - 1)
            else:
                _, sign, per = axis.split() if " " in axis else (axis, "//", "1")
                place = here[kind] // int(per) if sign == "//" else here[kind] % int(per)
            first = begins.get(kind, 0)
            found.append((first if given.scan and kind == "token" else first + place, first + place + 1))
        return tuple(found)


def visible(masks: Sequence[Text], inputs: Iterable[Declared], places: int = 150) -> float:
    """The share of visible pairs in a random sample."""
    draw = Draw("places")
    if not masks:
        return 1.0
    code = compile(" and ".join(f"({mask.text})" for mask in masks), "masks", "eval")
    read = [given for given in inputs if given.name in code.co_names]
    keywords = ("window", "chunk_size", "dilation", "global_count", "image_width", "image_radius")
    seen = 0
    for _ in range(places):
        q, h = draw.below(40) - 5, draw.below(4)
        env = Place(draw.below(2), h, h // 2, q, draw.below(40), 40, 40).env() | dict.fromkeys(keywords, 17)
        env |= {given.name: named(given, Sample(draw, given)) for given in read}
        seen += bool(eval(code, env))
    return seen / places


class Sample:
    """Numbers roughly like those of the generated suite; the same for the same index."""

    def __init__(self, draw: Draw, given: Declared) -> None:
        self._draw, self._given, self._known = draw, given, dict[object, float]()

    def __call__(self, index: object) -> float:
        if index not in self._known:
            self._known[index] = self._number()
        return self._known[index]

    def _number(self) -> float:
        if self._given.dtype == "float":
            return (self._draw.below(4001) - 2000) / (1000 if self._given.rows else 8000)
        return self._draw.below(2 if self._given.dtype == "bool" else 3 if self._given.rows else 41)
