"""A mask element by element: which pairs are visible, which tiles are empty, mixed or full, and which kernels visit.

Most tiles are classified without all their elements: tiles that the kernels skip are empty, those that they visit
without a mask are full, and a lattice of points with both values proves a tile mixed. All elements of the remaining
tiles are evaluated, up to a budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..expressions.distances import as_one
from ..expressions.tree import Node
from ..plan.sides import Side
from ..tiling.ranges import Span
from .samples import Told
from .values import evaluate

EMPTY, MIXED, FULL, UNKNOWN = range(4)
SKIPPED, MASKED, PLAIN = range(3)  # by kernels: tiles that are skipped, computed with the mask, without it

_LATTICE = 16  # points per side
_BUDGET = 2**29  # elements that are evaluated, at most, to classify tiles
_CHUNK = 2**16  # elements evaluated at once: arrays that stay in a core's cache
_COUNTED = 2**22  # tiles of a kernel, at most, that are counted if values of inputs decide which ones it visits
_SAMPLES = 4  # points per side that a pixel of several elements averages

# the state, or the treatment, of a tile that smaller ones make, by the bits of the values that these have
_STATES = (
    *(UNKNOWN, EMPTY, MIXED, MIXED, FULL, MIXED, MIXED, MIXED),
    *(UNKNOWN, UNKNOWN, MIXED, MIXED, UNKNOWN, MIXED, MIXED, MIXED),
)
_VISITS = (SKIPPED, SKIPPED, MASKED, MASKED, PLAIN, MASKED, MASKED, MASKED)


def count_visited(visits: Any) -> int:
    """The number of tiles that a kernel does not skip."""
    return int((visits != SKIPPED).sum())


@dataclass(frozen=True)
class Tiling:
    """The tiles of a mask, of `size` queries and keys each; the arrays have rows and columns of tiles."""

    size: tuple[int, int]
    states: Any  # EMPTY, MIXED, FULL, or UNKNOWN if classifying the tile was too much work
    visits: Any  # SKIPPED, MASKED or PLAIN
    back: Any = None  # the same for the kernel that owns tiles of keys, if that is a separate one

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

    def coarser(self, times: tuple[int, int]) -> Tiling:
        """The tiling whose tiles each consist of `times` of these, along queries and along keys."""
        size = self.size[0] * times[0], self.size[1] * times[1]
        return Tiling(size, _united(1 << self.states, times, _STATES), _united(1 << self.visits, times, _VISITS))

    @cached_property
    def kernels(self) -> tuple[tuple[str, Tiling], ...]:
        """Tilings with the kernels that visit their tiles; one entry if all kernels visit the same tiles."""
        if self.back is None or ((self.visits != SKIPPED) == (self.back != SKIPPED)).all():
            return (("the kernels visit", self),)
        other = replace(self, visits=self.back, back=None)
        return (("forward and backward_dq visit", self), ("backward_dkv visits", other))


@dataclass(frozen=True)
class _Walk:
    """How programs that own tiles of one side loop over the other: lengths and first positions of both sides."""

    along: Side
    spans: tuple[Span, ...]
    tile: int
    length: int
    start: int
    step: int
    count: int
    shift: int

    @property
    def owned(self) -> Side:
        """The side of which each program owns a tile."""
        return "q" if self.along == "k" else "k"

    @property
    def programs(self) -> int:
        """The number of programs."""
        return -(-self.length // self.tile)

    @property
    def steps(self) -> int:
        """The number of tiles along the other side."""
        return -(-self.count // self.step)


@dataclass(frozen=True)
class Mask:
    """A mask over q, k, q_len, k_len and named numbers, and what kernels know about its tiles."""

    keep: Node
    spans: tuple[Span, ...]
    told: Told | None
    q_len: int
    k_len: int
    numbers: Mapping[str, float]
    back: tuple[Span, ...] | None = None  # spans of queries, for the kernel that owns tiles of keys

    @property
    def shift(self) -> int:
        """The position of the first query."""
        return self.k_len - self.q_len

    def visible(self, rows: Any, keys: Any) -> Any:
        """Which pairs of rows and keys are visible; both are arrays that broadcast against each other."""
        import numpy as np

        found = evaluate(self.keep, self._env(q=np.asarray(rows) + self.shift, k=np.asarray(keys)))
        return np.broadcast_to(np.asarray(found, bool), np.broadcast_shapes(np.shape(rows), np.shape(keys)))

    def _env(self, **positions: Any) -> dict[str, Any]:
        return {**self.numbers, "q_len": self.q_len, "k_len": self.k_len, "q_begin": self.shift} | positions

    def tiles(self, size: tuple[int, int]) -> Tiling:
        """The tiling into tiles of this many queries and keys."""
        import numpy as np

        noted = self._noted(size)
        visits = self._visits(size, False, noted)
        states = np.select([visits == SKIPPED, visits == PLAIN], [EMPTY, FULL], UNKNOWN)
        self._look(states, size, min(_LATTICE, size[0]), min(_LATTICE, size[1]))
        left = int((states == UNKNOWN).sum())
        if left * size[0] * size[1] <= _BUDGET:
            self._look(states, size, *size)
        back = None if self.back is None else self._visits(size, True, noted)
        return Tiling(size, states, visits, back)

    def visits(self, size: tuple[int, int], owns_keys: bool) -> Any:
        """The treatment of each tile by the kernel whose programs own tiles of queries, or of keys."""
        return self._visits(size, owns_keys, self._noted(size))

    def last_visits(self, size: tuple[int, int]) -> Any:
        """The treatment of each of its tiles by the program that owns the last queries."""
        walk = self._walk(size, owns_keys=False)
        last = range(walk.programs)[-1:]
        return self._walked(walk, last, self._noted(size, last[0] * size[0]))[0]

    def count(self, size: tuple[int, int], owns_keys: bool) -> tuple[int | None, int]:
        """The number of tiles that a kernel visits, None if counting is too much work, and the number of all tiles."""
        walk = self._walk(size, owns_keys)
        total = walk.programs * walk.steps
        if self.told is None:
            return sum(int((hi - lo).sum()) for lo, hi, _ in self._ends(walk, range(walk.programs))), total
        return (count_visited(self.visits(size, owns_keys)) if total <= _COUNTED else None), total

    def _visits(self, size: tuple[int, int], owns_keys: bool, noted: Mapping[str, Any]) -> Any:
        walk = self._walk(size, owns_keys)
        if walk.along == "k":
            return self._walked(walk, range(walk.programs), noted)
        return self._walked(walk, range(walk.programs), {name: found.T for name, found in noted.items()}).T

    def _walk(self, size: tuple[int, int], owns_keys: bool) -> _Walk:
        queries, keys = (size[0], self.q_len, self.shift), (size[1], self.k_len, 0)
        if owns_keys and self.back is not None:
            return _Walk("q", self.back, *keys, *queries)
        return _Walk("k", self.spans, *queries, *keys)

    def _walked(self, walk: _Walk, programs: range, noted: Mapping[str, Any]) -> Any:
        """The treatment of each tile by some programs, with a row for each program, as in the extremes `noted`."""
        import numpy as np

        visits = np.zeros((len(programs), walk.steps), np.int8)
        if self.told is not None:
            strip = max(1, _CHUNK // walk.steps)
            for at in range(0, len(programs), strip):
                known = {name: found[at : at + strip] for name, found in noted.items()}
                visits[at : at + strip] = self._told(self.told, walk, programs[at : at + strip], known)
            return visits
        other = np.arange(walk.steps)
        for lo, hi, full in self._ends(walk, programs):
            visits[(other >= lo[:, None]) & (other < hi[:, None])] = MASKED
            if full:
                visits[(other >= full[0][:, None]) & (other < full[1][:, None])] = PLAIN
        return visits

    def _ends(self, walk: _Walk, programs: range) -> Iterator[tuple[Any, Any, tuple[Any, Any] | None]]:
        """For each span, the programs' first tiles, those after their last ones, and bounds of those without a mask."""
        import numpy as np

        first = np.arange(programs.start, programs.stop) * walk.tile
        last = np.minimum(first + walk.tile, walk.length) - 1
        env = self._env(**{f"{walk.owned}_first": first + walk.start, f"{walk.owned}_last": last + walk.start})
        after = np.zeros_like(first)

        def end(node: Node | None, otherwise: int) -> Any:
            value = otherwise if node is None else evaluate(node, env) - walk.shift
            return np.clip(np.broadcast_to(value, first.shape), 0, walk.count)

        for span in walk.spans:
            lo = np.maximum(end(span.lo, 0) // walk.step, after)
            hi = np.maximum(-(-end(span.hi, walk.count) // walk.step), lo)
            full = None
            if span.can_be_full:
                full_lo = np.clip(-(-end(span.full_lo, 0) // walk.step), lo, hi)
                full = full_lo, np.clip(end(span.full_hi, walk.count) // walk.step, full_lo, hi)
            yield lo, hi, full
            after = hi

    def _told(self, told: Told, walk: _Walk, programs: range, noted: Mapping[str, Any]) -> Any:
        """The treatment of each tile by programs that know the extremes of the values that the mask reads."""
        import numpy as np

        shape = len(programs), walk.steps
        first, other = np.array(programs)[:, None] * walk.tile, np.arange(walk.steps) * walk.step
        last, end = np.minimum(first + walk.tile, walk.length) - 1, np.minimum(other + walk.step, walk.count) - 1
        env = self._env(**{f"{walk.owned}_first": first + walk.start, f"{walk.owned}_last": last + walk.start})
        env |= {f"{walk.along}_first": other + walk.shift, f"{walk.along}_last": end + walk.shift}
        some, every = (np.broadcast_to(evaluate(node, {**env, **noted}), shape) for node in (told.some, told.every))
        every = some & every & (other + walk.step <= walk.count)
        if told.ranged:
            column = np.arange(walk.steps)
            some, every = _joined(some, column), _joined(every, column, until=~every)
        return np.select([every, some], [PLAIN, MASKED], SKIPPED)

    def _noted(self, size: tuple[int, int], first: int = 0) -> dict[str, Any]:
        """The extremes of values in the tiles from a row on, evaluated once for each run that shares a value."""
        import numpy as np

        found: dict[str, Any] = {}
        shape = -(-(self.q_len - first) // size[0]), -(-self.k_len // size[1])
        for note in self.told.notes if self.told else ():
            rows, row_starts = _stretches(first, self.q_len, size[0], note.steps.get("q"))
            keys, key_starts = _stretches(0, self.k_len, size[1], note.steps.get("k"))
            least, most = [], []
            strip = max(1, _CHUNK // len(keys))
            for start in range(0, len(rows), strip):
                q = rows[start : start + strip, None]
                values = evaluate(note.value, self._env(q=q + self.shift, k=keys))
                values = np.broadcast_to(values, (len(q), len(keys)))
                least.append(np.minimum.reduceat(values, key_starts, 1))
                most.append(np.maximum.reduceat(values, key_starts, 1))
            for name, values, extreme in (("least", least, np.minimum), ("most", most, np.maximum)):
                joined = extreme.reduceat(np.concatenate(values), row_starts)
                found[f"{note.name}_{name}"] = np.broadcast_to(joined, shape)
        return found

    def _look(self, states: Any, size: tuple[int, int], rows: int, keys: int) -> None:
        """Evaluates the unknown tiles at this many of their rows and keys, and sets the states that this proves."""
        import numpy as np

        every = (rows, keys) == size
        row = np.unique(np.linspace(0, size[0] - 1, rows).astype(int))
        key = np.unique(np.linspace(0, size[1] - 1, keys).astype(int))
        found = np.argwhere(states == UNKNOWN)
        looked, like = self._unlike(found, size)
        alike = np.empty(len(looked), states.dtype)
        # a tile too large for one step is evaluated some of its rows at a time
        pieces = np.array_split(row, -(-rows * keys // _CHUNK))
        step = max(1, _CHUNK // (len(pieces[0]) * keys))
        for start in range(0, len(looked), step):
            tiles = looked[start : start + step]
            some, all_ = np.zeros(len(tiles), bool), np.ones(len(tiles), bool)
            # rows and keys past the last are replaced by the last one: that changes neither
            k = np.minimum(tiles[:, 1, None, None] * size[1] + key, self.k_len - 1)
            for piece in pieces:
                q = np.minimum(tiles[:, 0, None, None] * size[0] + piece[:, None], self.q_len - 1)
                shown = self.visible(q, k)
                some |= shown.any((1, 2))
                all_ &= shown.all((1, 2))
            uniform = np.where(all_, FULL, EMPTY) if every else UNKNOWN
            alike[start : start + step] = np.where(some & ~all_, MIXED, uniform)
        states[tuple(found.T)] = alike[like]

    def _unlike(self, tiles: Any, size: tuple[int, int]) -> tuple[Any, Any]:
        """Those of the tiles that may differ from each other, and for each tile the index of the one that equals it."""
        import numpy as np

        if any(n.op == "var" and n.value in ("q", "k") for n in as_one(self.keep).walk()):
            return tiles, np.arange(len(tiles))
        # if a mask reads only the distance of a pair, whole tiles at the same distance are the same
        whole = ((tiles + 1) * size <= (self.q_len, self.k_len)).all(1)
        apart = (tiles * size) @ (1, -1)
        marks = np.where(whole, apart, max(self.q_len, self.k_len) + np.arange(len(tiles)))
        _, picked, like = np.unique(marks, return_index=True, return_inverse=True)
        return tiles[picked], like


def _stretches(begin: int, end: int, tile: int, step: int | None) -> tuple[Any, Any]:
    """Starts of runs that cross no border of a tile and no multiple of a step, and the indices of those of tiles.

    Without a step, one run represents all tiles.
    """
    import numpy as np

    starts = np.arange(begin, end if step else begin + 1)
    if step:
        starts = starts[(starts % tile == 0) | (starts % step == 0)]
    return starts, np.flatnonzero(starts % tile == 0)


def _united(bits: Any, times: tuple[int, int], table: tuple[int, ...]) -> Any:
    """The entry of a table for all bits of the tiles that make one."""
    import numpy as np

    for axis, some in enumerate(times):
        bits = np.bitwise_or.reduceat(bits, np.arange(0, bits.shape[axis], some), axis)
    return np.array(table)[bits]


def _joined(marked: Any, column: Any, until: Any = None) -> Any:
    """In each row, the columns from the first marked one to the last, or up to the next one for which `until` holds."""
    import numpy as np

    count = len(column)
    first = np.where(marked, column, count).min(1, keepdims=True)
    if until is None:
        return (column >= first) & (column <= np.where(marked, column, -1).max(1, keepdims=True))
    return (column >= first) & (column < np.where(until & (column > first), column, count).min(1, keepdims=True))


@dataclass(frozen=True)
class Raster:
    """A mask in pixels of `side` queries and keys; the arrays have rows and columns of pixels."""

    side: int
    shares: Any  # the visible share of the pairs of each pixel, in sixteenths
    states: Any  # of the tile around each pixel
    visits: Any


def raster(mask: Mask, tiling: Tiling, longest: int) -> Raster:
    """The pixels of a picture, at most `longest` on a side; a pixel of many elements averages a sample of them."""
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
    """The positions that each pixel along an axis averages; steps of unequal length avoid aliasing."""
    import numpy as np

    i = np.arange(-(-length // side) * samples)
    found = ((i + (i * 0.6180339887498949) % 1) * (side / samples)).astype(int) if side > 1 else i
    return np.minimum(found, length - 1).reshape(-1, samples)


def power(value: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << (value - 1).bit_length()
