"""A mask element by element: which pairs it shows, which tiles it leaves empty, mixed or full, and what kernels visit.

Most tiles need no look at their elements: what the kernels skip is empty, what they visit without a mask is full, and a
lattice of points that shows both kinds proves a tile mixed. All elements of what is left are evaluated, up to a budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..expressions.functions import FUNCTIONS
from ..expressions.tree import Node
from ..expressions.whole_numbers import floated
from ..plan.sides import Side
from ..tiling.ranges import Span
from .samples import Note, Told

EMPTY, MIXED, FULL, UNKNOWN = range(4)
SKIPPED, MASKED, PLAIN = range(3)  # what kernels do with a tile: nothing, all of it under a mask, all of it

_LATTICE = 16  # points per side
_BUDGET = 2**29  # elements that are evaluated to tell tiles apart
_CHUNK = 2**21  # of them at once
_SAMPLES = 4  # points per side that a pixel of several elements averages


def count_visited(visits: Any) -> int:
    """The number of tiles that a kernel does not skip."""
    return int((visits != SKIPPED).sum())


def evaluate(node: Node, env: Mapping[str, Any]) -> Any:
    """The value of an expression over numbers and arrays; leaves stand in `env` by name."""
    import numpy as np

    with np.errstate(all="ignore"):
        return _value(node, env)


def _value(node: Node, env: Mapping[str, Any]) -> Any:
    import numpy as np

    if node.op == "num":
        return node.value
    if node.op in ("var", "option", "local"):
        return env[str(node.value)]
    args = [_value(arg, env) for arg in node.args]
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
            args[1] = args[1] + (args[1] == 0)  # by 0 as by 1
    if function := FUNCTIONS.get(node.op):
        return function.numpy(np, *args)
    return getattr(np, _OPERATIONS[node.op])(*args)


_OPERATIONS = {
    "/": "true_divide", "//": "floor_divide", "%": "mod", "**": "power", "neg": "negative", "<": "less",
    "<=": "less_equal", ">": "greater", ">=": "greater_equal", "==": "equal", "!=": "not_equal", "and": "logical_and",
    "or": "logical_or", "not": "logical_not", "where": "where",
}  # fmt: skip


@dataclass(frozen=True)
class Tiling:
    """The tiles of a mask, of `size` queries and keys each; arrays by row and column of tiles."""

    size: tuple[int, int]
    states: Any  # EMPTY, MIXED, FULL, or UNKNOWN where that would have been too much work
    visits: Any  # SKIPPED, MASKED or PLAIN
    back: Any = None  # the same of the kernel that owns tiles of keys, where that is another one

    def count(self, state: int) -> int:
        """The number of tiles in a state."""
        return int((self.states == state).sum())

    @property
    def total(self) -> int:
        """The number of tiles."""
        return int(self.states.size)

    @cached_property
    def visited(self) -> int:
        """The number of tiles that kernels visit."""
        return count_visited(self.visits)

    @cached_property
    def vain(self) -> int:
        """The number of empty tiles that they visit because ranges cannot exclude them."""
        return int(((self.states == EMPTY) & (self.visits != SKIPPED)).sum())

    @property
    def saved(self) -> float:
        """The share of the tiles that the kernels skip."""
        return 1 - self.visited / self.total

    @cached_property
    def kernels(self) -> tuple[tuple[str, Tiling], ...]:
        """Tilings with the kernels that visit tiles so; one entry where all kernels visit the same tiles."""
        other = replace(self, visits=self.back, back=None) if self.back is not None else self
        if other.visited == self.visited:
            return (("the kernels visit", self),)
        return (("forward and backward_dq visit", self), ("backward_dkv visits", other))


@dataclass(frozen=True)
class Mask:
    """A mask over q, k, q_len, k_len and named numbers, and what kernels know of its tiles."""

    keep: Node
    spans: tuple[Span, ...]
    told: Told | None
    q_len: int
    k_len: int
    numbers: Mapping[str, float]
    back: tuple[Span, ...] | None = None  # of queries, as the kernel that owns tiles of keys knows them

    @property
    def shift(self) -> int:
        """The position of the first query."""
        return self.k_len - self.q_len

    def visible(self, rows: Any, keys: Any) -> Any:
        """The visible pairs of rows and keys, which are arrays that broadcast against each other."""
        import numpy as np

        found = evaluate(self.keep, self._env(q=np.asarray(rows) + self.shift, k=np.asarray(keys)))
        return np.broadcast_to(np.asarray(found, bool), np.broadcast_shapes(np.shape(rows), np.shape(keys)))

    def _env(self, **positions: Any) -> dict[str, Any]:
        return {**self.numbers, "q_len": self.q_len, "k_len": self.k_len, "q_begin": self.shift} | positions

    def tiles(self, size: tuple[int, int]) -> Tiling:
        """The states of the tiles for given numbers of queries and keys."""
        import numpy as np

        visits = self.visits(size, owns_keys=False)
        states = np.select([visits == SKIPPED, visits == PLAIN], [EMPTY, FULL], UNKNOWN)
        self._look(states, size, min(_LATTICE, size[0]), min(_LATTICE, size[1]))
        left = int((states == UNKNOWN).sum())
        if left * size[0] * size[1] <= _BUDGET:
            self._look(states, size, *size)
        back = None if self.back is None else self.visits(size, owns_keys=True)
        return Tiling(size, states, visits, back)

    def visits(self, size: tuple[int, int], owns_keys: bool) -> Any:
        """What a kernel does with each tile: one whose programs own queries, or keys."""
        if owns_keys and self.back is not None:
            return self._visits(size, self.back, along="q")
        return self._visits(size, self.spans, along="k")

    def _visits(self, size: tuple[int, int], spans: tuple[Span, ...], along: Side) -> Any:
        """The kernels' treatment of each tile: their walk along one side, for all tiles of the other at once."""
        import numpy as np

        if self.told is not None:
            return self._told(self.told, size, along)
        # of the side that programs own, then of the one that they walk along
        sides = ((size[0], self.q_len, self.shift), (size[1], self.k_len, 0))
        (tile, length, start), (step, count, shift) = sides if along == "k" else sides[::-1]
        first, name = np.arange(0, length, tile), "q" if along == "k" else "k"
        last = np.minimum(first + tile, length) - 1
        env = self._env(**{f"{name}_first": first + start, f"{name}_last": last + start})
        other = np.arange(-(-count // step))
        visits = np.zeros((len(first), len(other)), np.int8)
        after = np.zeros_like(first)

        def end(node: Node | None, otherwise: int) -> Any:
            value = otherwise if node is None else evaluate(node, env) - shift
            return np.clip(np.broadcast_to(value, first.shape), 0, count)

        for span in spans:
            lo = np.maximum(end(span.lo, 0) // step, after)
            hi = np.maximum(-(-end(span.hi, count) // step), lo)
            visits[(other >= lo[:, None]) & (other < hi[:, None])] = MASKED
            if span.can_be_full:
                full_lo = np.clip(-(-end(span.full_lo, 0) // step), lo, hi)
                full_hi = np.clip(end(span.full_hi, count) // step, full_lo, hi)
                visits[(other >= full_lo[:, None]) & (other < full_hi[:, None])] = PLAIN
            after = hi
        return visits if along == "k" else visits.T

    def _told(self, told: Told, size: tuple[int, int], along: Side) -> Any:
        """The kernels' treatment of each tile where they know the extremes of what the mask reads."""
        import numpy as np

        first_row, first_key = np.arange(0, self.q_len, size[0])[:, None], np.arange(0, self.k_len, size[1])
        env = self._env(
            q_first=first_row + self.shift,
            q_last=np.minimum(first_row + size[0], self.q_len) - 1 + self.shift,
            k_first=first_key,
            k_last=np.minimum(first_key + size[1], self.k_len) - 1,
        )
        for note in told.notes:
            env[f"{note.name}_least"], env[f"{note.name}_most"] = self._extremes(note, size)
        shape = (len(first_row), len(first_key))
        some, every = (np.broadcast_to(evaluate(node, env), shape) for node in (told.some, told.every))
        whole = first_key + size[1] <= self.k_len if along == "k" else first_row + size[0] <= self.q_len
        every = some & every & whole
        if told.ranged:
            if along == "q":
                some, every = some.T, every.T
            other = np.arange(some.shape[1])
            some, every = _joined(some, other), _joined(every, other, until=~every)
        found = np.select([every, some], [PLAIN, MASKED], SKIPPED).astype(np.int8)
        return found.T if told.ranged and along == "q" else found

    def _extremes(self, note: Note, size: tuple[int, int]) -> tuple[Any, Any]:
        """The least and the greatest of a value in each tile, looked at once for each stretch that shares it."""
        import numpy as np

        rows, row_starts = _stretches(self.q_len, size[0], note.steps.get("q", size[0]))
        keys, key_starts = _stretches(self.k_len, size[1], note.steps.get("k", size[1]))
        least, most = [], []
        for start, end in zip(row_starts, [*row_starts[1:], len(rows)], strict=True):
            env = self._env(q=rows[start:end, None] + self.shift, k=keys)
            found = np.broadcast_to(evaluate(note.value, env), (end - start, len(keys)))
            least.append(np.minimum.reduceat(found.min(0), key_starts))
            most.append(np.maximum.reduceat(found.max(0), key_starts))
        return np.array(least), np.array(most)

    def _look(self, states: Any, size: tuple[int, int], rows: int, keys: int) -> None:
        """Looks into the unknown tiles at so many rows and keys, and notes what that tells of them."""
        import numpy as np

        every = (rows, keys) == size
        row = np.unique(np.linspace(0, size[0] - 1, rows).astype(int))
        key = np.unique(np.linspace(0, size[1] - 1, keys).astype(int))
        found = np.argwhere(states == UNKNOWN)
        # a tile too large for one step is evaluated some of its rows at a time
        pieces = np.array_split(row, -(-rows * keys // _CHUNK))
        step = max(1, _CHUNK // (len(pieces[0]) * keys))
        for start in range(0, len(found), step):
            tiles = found[start : start + step]
            some, all_ = np.zeros(len(tiles), bool), np.ones(len(tiles), bool)
            # past the last row or key stands the last one once more: that changes neither
            k = np.minimum(tiles[:, 1, None, None] * size[1] + key, self.k_len - 1)
            for piece in pieces:
                q = np.minimum(tiles[:, 0, None, None] * size[0] + piece[:, None], self.q_len - 1)
                shown = self.visible(q, k)
                some |= shown.any((1, 2))
                all_ &= shown.all((1, 2))
            alike = np.where(all_, FULL, EMPTY) if every else UNKNOWN
            states[tuple(tiles.T)] = np.where(some & ~all_, MIXED, alike)


def _stretches(length: int, tile: int, step: int) -> tuple[Any, Any]:
    """Starts of stretches that cross no border of a tile and no multiple of a step, and those that begin a tile."""
    import numpy as np

    starts = np.union1d(np.arange(0, length, tile), np.arange(0, length, step))
    return starts, np.flatnonzero(starts % tile == 0)


def _joined(marked: Any, column: Any, until: Any = None) -> Any:
    """In each row the columns from the first marked one to the last, or to where `until` holds first after it."""
    import numpy as np

    count = len(column)
    first = np.where(marked, column, count).min(1, keepdims=True)
    if until is None:
        return (column >= first) & (column <= np.where(marked, column, -1).max(1, keepdims=True))
    return (column >= first) & (column < np.where(until & (column > first), column, count).min(1, keepdims=True))


@dataclass(frozen=True)
class Raster:
    """A mask in pixels of `side` queries and keys; arrays by row and column of pixels."""

    side: int
    shares: Any  # of the pairs of each that are visible, in sixteenths
    states: Any  # of the tile around it
    visits: Any


def raster(mask: Mask, tiling: Tiling, longest: int) -> Raster:
    """The pixels of a picture whose longer side has at most so many; one of many elements averages a sample."""
    import numpy as np

    side = power(-(-max(mask.q_len, mask.k_len) // longest))
    samples = min(side, _SAMPLES)
    rows, keys = (_points(length, side, samples) for length in (mask.q_len, mask.k_len))
    shares = np.empty((len(rows), len(keys)), np.int8)
    strip = max(1, _CHUNK // keys.size)
    for start in range(0, len(rows), strip):
        shown = mask.visible(rows[start : start + strip].reshape(-1, 1), keys.reshape(1, -1))
        counts = shown.reshape(-1, samples, len(keys), samples).sum((1, 3))
        shares[start : start + strip] = counts * (16 // samples**2)
    row, key = (np.arange(len(points)) * side // size for points, size in zip((rows, keys), tiling.size, strict=True))
    return Raster(side, shares, tiling.states[row[:, None], key], tiling.visits[row[:, None], key])


def _points(length: int, side: int, samples: int) -> Any:
    """For each pixel along an axis the positions that it averages; steps of unequal length see no false patterns."""
    import numpy as np

    i = np.arange(-(-length // side) * samples)
    found = ((i + (i * 0.6180339887498949) % 1) * (side / samples)).astype(int) if side > 1 else i
    return np.minimum(found, length - 1).reshape(-1, samples)


def power(value: int) -> int:
    """The power of two that is no less."""
    return 1 << (value - 1).bit_length()
