"""The keys of a cache that new tokens see: for kernels those of a tile, for the host a bound from a call's numbers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..expressions.tree import Node
from ..language.spec import Spec
from ..printing import printers
from . import reach, running_sums, tile_ranges
from .reach import Reach
from .statements import Block, Loop, Statement, names, reads, targets_of
from .tile_ranges import TileRange

SPAN = ("lo", "hi", "full_lo", "full_hi")


@dataclass(frozen=True)
class KeySpan:
    """The function that returns which keys a tile of rows sees, and which of them need no mask."""

    tiles: TileRange
    by_row: frozenset[str]  # names with a value for each row
    function = "key_span"

    @property
    def parameters(self) -> tuple[str, ...]:
        """Its parameters."""
        return (*(("span",) if len(self.tiles.ends) > 1 else ()), *self.tiles.parameters)

    @property
    def call(self) -> str:
        """Text that calls it."""
        return f"{self.function}({', '.join('h[:, None]' if name == 'h' else name for name in self.parameters)})"

    @property
    def body(self) -> tuple[Statement, ...]:
        """Its statements; no span begins before the end of the previous one."""
        found: list[Statement] = []
        several = len(self.tiles.ends) > 1
        for n, ends in enumerate(self.tiles.ends):
            number = str(n) if several else ""
            lo, hi, full_lo, full_hi = (f"{name}{number}" for name in SPAN)
            first = self._over_rows("min", ends.lo)
            found.append(Statement(lo, f"tl.maximum({first}, hi{n - 1})" if n else first))
            found.append(Statement(hi, f"tl.maximum({self._over_rows('max', ends.hi)}, {lo})"))
            if ends.full:
                full = self._over_rows("max", ends.full[0]), self._over_rows("min", ends.full[1])
                found.append(Statement(full_lo, f"tl.maximum({full[0]}, {lo})"))
                found.append(Statement(full_hi, f"tl.minimum({full[1]}, {hi})"))
            else:
                found.append(Statement(f"{full_lo}, {full_hi}", f"{hi}, {lo}"))
        for name in SPAN if several else ():
            *others, last = (f"{name}{n}" for n in range(len(self.tiles.ends)))
            choice = "".join(f"tl.where(span == {n}, {other}, " for n, other in enumerate(others))
            found.append(Statement(name, f"{choice}{last}{')' * len(others)}"))
        return (*found, Statement("", f"return {', '.join(SPAN)}"))

    def visit(self, *blocks: Block, narrowed: Iterable[Block] = ()) -> tuple[Block, ...]:
        """The statements that run `blocks` for the tiles of a split that the rows see, range by range.

        Those in `narrowed` restrict ranges further.
        """
        narrowed = tuple(narrowed)
        read = {"lo", "hi", *reads((*narrowed, *blocks))}
        inside: tuple[Block, ...] = (
            Statement(targets_of(SPAN, read), self.call),
            *narrowed,
            Statement("begin, end", "tl.maximum(lo, split_begin), tl.minimum(hi, split_begin + split_size)"),
            Statement("first", "begin // BLOCK_N"),
            Statement("last", "tl.where(begin < end, tl.cdiv(end, BLOCK_N), first)"),
            *blocks,
        )
        count = len(self.tiles.ends)
        return (Loop("span", "0", str(count), inside),) if count > 1 else inside

    def _over_rows(self, extreme: str, text: str) -> str:
        """Text of a bound that holds for all rows of the tile."""
        return f"tl.{extreme}({text})" if names(text) & self.by_row else text


@dataclass(frozen=True)
class CachedRange(Reach):
    """How far back new tokens see, and the ranges of keys that they read, over `position` and `k_len`.

    `read` holds the ends of these ranges, as far as numbers determine them.
    """

    read: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    reading: tuple[str, ...] = field(default=(), compare=False)  # the call's numbers in these texts
    summed: str = field(default="0", compare=False)  # text of the first key whose running sums kernels use


def build(spec: Spec) -> CachedRange:
    """The range of a spec's mask; everything if only tensors limit it, or nothing does."""
    found = reach.build(spec)
    read, summed = tuple(_read(spec, reach.numbers(spec))), "0"
    if any(given.scan for given in spec.inputs):
        # sums include hidden keys: all after the first key that may be seen
        alone = found.first_keys == "0" and len(tile_ranges.spans(spec, "k")) == 1 and running_sums.differ(spec)
        near = found.known and alone
        summed = "tl.maximum(k_len - q_len - reach, 0)" if near else "0"
        read = ((f"position - {found.reach}" if near else "0", "k_len"),)
    named = names(*(text for ends in read for text in ends))
    reading = tuple(name for name in reach.given(spec) if name in named)
    return CachedRange(**vars(found), read=read, reading=reading, summed=summed)


def _read(spec: Spec, scalars: set[str]) -> Iterable[tuple[str, str]]:
    """Texts of the ranges of keys that a row's program loads for it, or of parts of them."""
    for span in tile_ranges.spans(spec, "k"):
        lo = Node("num", (), 0, "int") if span.lo is None else _of_row(span.lo, "min", scalars)
        hi = Node("var", (), "k_len", "int") if span.hi is None else _of_row(span.hi, "max", scalars)
        if lo and hi:
            yield printers.torch(lo, lambda node: str(node.value)), printers.torch(hi, lambda node: str(node.value))


def _of_row(end: Node, extreme: str, scalars: set[str]) -> Node | None:
    """An end for a tile of one row, if numbers determine it; the `extreme` of several ends may ignore unknown ones."""
    if end.op == "var" and end.value in ("q_first", "q_last"):
        return Node("option", (), "position", "int")
    if end.op in ("option", "input"):
        return Node("option", (), end.value, end.type) if end.value in scalars and not end.args else None
    if end.op in ("var", "local"):
        return end if end.value == "k_len" else None
    args = [_of_row(arg, extreme if end.op in ("min", "max") else "", scalars) for arg in end.args]
    known = [arg for arg in args if arg]
    if end.op == extreme and known:
        return functools.reduce(lambda a, b: dataclasses.replace(end, args=(a, b)), known)
    return dataclasses.replace(end, args=tuple(known)) if len(known) == len(args) else None
