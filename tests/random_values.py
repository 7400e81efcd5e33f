"""Expressions as Python itself understands them, at one place of a score."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from formulas import bucket
from random_inputs import Declared, Draw, Text

FUNCTIONS: dict[str, object] = {
    **{name: getattr(math, name) for name in ("exp", "log", "sqrt", "tanh", "floor", "sin", "cos")},
    "sigmoid": lambda x: 0.5 + 0.5 * math.tanh(x / 2),
    "softplus": lambda x: max(x, 0) + math.log1p(math.exp(-abs(x))),
    "clamp": lambda x, low, high: min(max(x, low), high),
    "where": lambda condition, a, b: a if condition else b,
    "bucket": bucket,
}


class Read(float):
    """A number that may be written with an index."""

    def __getitem__(self, index: object) -> float:
        return float(self)


class Table:
    """Numbers behind an index that is written by hand."""

    def __init__(self, at: Callable[[tuple[int, ...]], float]) -> None:
        self._at = at

    def __getitem__(self, index: float | tuple[float, ...]) -> float:
        return self._at(tuple(int(i) for i in (index if isinstance(index, tuple) else (index,))))


def named(given: Declared, at: Callable[[tuple[int, ...]], float]) -> Read | Table:
    """What stands for an input in an expression; `at` gives its numbers here, by the index that is written."""
    return Table(at) if given.written else Read(at(()))


def visible(masks: Sequence[Text], inputs: Iterable[Declared], places: int = 150) -> float:
    """The part of a sample of places that all masks show."""
    draw = Draw("places")
    if not masks:
        return 1.0
    code = compile(" and ".join(f"({mask.text})" for mask in masks), "masks", "eval")
    read = [given for given in inputs if given.name in code.co_names]
    keywords = ("window", "chunk_size", "dilation", "global_count", "image_width", "image_radius")
    seen = 0
    for _ in range(places):
        q, h = draw.below(40) - 5, draw.below(4)
        env = FUNCTIONS | {"q": q, "k": draw.below(40), "h": h, "kv_h": h // 2, "b": draw.below(2)}
        env |= {"q_len": 40, "k_len": 40} | dict.fromkeys(keywords, 17)
        env |= {given.name: named(given, _Sample(draw, given)) for given in read}
        seen += bool(eval(code, env))
    return seen / places


class _Sample:
    """Numbers as the generated suite would make them, roughly; the same for the same index."""

    def __init__(self, draw: Draw, given: Declared) -> None:
        self._draw, self._given, self._known = draw, given, dict[tuple[int, ...], float]()

    def __call__(self, index: tuple[int, ...]) -> float:
        if index not in self._known:
            self._known[index] = self._number()
        return self._known[index]

    def _number(self) -> float:
        if self._given.dtype == "float":
            return (self._draw.below(4001) - 2000) / (1000 if self._given.rows else 8000)
        return self._draw.below(2 if self._given.dtype == "bool" else 3 if self._given.rows else 41)
