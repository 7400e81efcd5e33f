"""How workers of the forward pass for Hopper GPUs loop over tiles of keys: over ranges, and over the tiles of each."""

from __future__ import annotations

from dataclasses import dataclass

from ...loops import Loops
from ...statements import Block, Branch, Call, Loop, Statement
from . import own_range

_COUNTED = Statement("at", "1", "+=")
_AS_LONG = "BLOCK_N == 64 and WORKERS == 2"
"""The condition under which all keys of a tile may be hidden from one of two workers; three workers issue products in
turns, so each of them needs all tiles."""


@dataclass(frozen=True)
class Walk:
    """The walk of a worker, and of the warp that loads for all of them."""

    loops: Loops
    first_taken: tuple[str, ...]  # the arguments for the first tile of a range
    taken: tuple[str, ...]  # the arguments for each further tile
    before_full: tuple[Block, ...] = ()  # the statements that exclude some full tiles

    @property
    def spans(self) -> int:
        """The number of ranges of tiles."""
        return len(self.loops.tiles.ends)

    @property
    def own(self) -> bool:
        """True if workers may have ranges of their own, computed from their own rows; only with a single range."""
        return self.loops.by_place

    @property
    def range(self) -> tuple[Block, ...]:
        """The statements that compute a worker's range, for the names that they read."""
        return (*self._own_rows, *self.loops.range)

    def spanned(self, visit: tuple[Block, ...]) -> tuple[Block, ...]:
        """The visit of each range of a program's tiles, after the range is computed."""
        body = (*self.loops.range_for(visit), *visit)
        return (Loop("span", "0", str(self.spans), body),) if self.spans > 1 else body

    @property
    def blocks(self) -> tuple[Block, ...]:
        """A worker's walk; it passes by tiles that only other workers' rows see, but still has to release them."""
        if not self.own:
            return self.spanned(self._visit)
        return (
            *self._own_rows,
            *self.loops.range_for((*own_range.WITHIN, *self._visit)),
            Branch(_AS_LONG, (*own_range.WITHIN, _passed("high - last"))),
            *self._visit,
            Branch(_AS_LONG, (_passed("first - low"),)),
        )

    @property
    def _own_rows(self) -> tuple[Block, ...]:
        """The statements that narrow a tile's queries to those of one worker, if tiles of keys are as long."""
        own = (
            Statement("q_first", "tl.minimum(q_first + WORKER * 64, q_last)"),
            Statement("q_last", "tl.minimum(q_first + 63, q_last)"),
        )
        return (Branch(_AS_LONG, own_range.rows(self.loops, "rows", own)),) if self.own else ()

    @property
    def _visit(self) -> tuple[Block, ...]:
        """A worker's loops over the tiles of one range, from the last one back."""

        def over(begin: str, end: str, mixed: str) -> Loop:
            body = (
                self.loops.begun(f"{begin} + {end} - 1 - j"),
                Call("acc, m, l, packed", "attend", (*self.taken, f"mixed={mixed}")),
                _COUNTED,
            )
            return Loop("j", begin, end, body)

        rest = Statement("rest", "last - 1", label="tiles before this one remain")
        loops: tuple[Block, ...] = (rest, over("first", "rest", "True"))
        if self.loops.full:
            loops = (
                *self.before_full,
                rest,
                over("full_last", "rest", "True"),
                Statement("rest", "tl.minimum(full_last, rest)"),
                over("full_first", "rest", "False"),
            )
        if self.loops.full and self.loops.left:
            loops += (Statement("rest", "tl.minimum(full_first, rest)"), over("first", "rest", "True"))
        begin = (
            self.loops.begun("last - 1"),
            # never `_`, which an enclosing loop may have set: to the compiler that is one variable of one type
            Call("shrink, m, l, packed", "attend_first", self.first_taken),
            *((Statement("acc", "acc * shrink[:, None]"),) if self.spans > 1 else ()),
            _COUNTED,
            Statement("visits", "1", "+="),
        )
        end = Statement("acc", "add_last(at, acc, packed, buffers, STAGES, WEIGHTS)")
        return (Branch("last > first", (*begin, *loops, end)),)


def _passed(count: str) -> Statement:
    return Statement("at", f"pass_by(at, {count}, buffers, STAGES)")
