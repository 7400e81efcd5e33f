"""How workers of the forward pass for Hopper GPUs walk over tiles of keys: ranges of them, and the tiles of each."""

from __future__ import annotations

from dataclasses import dataclass

from ...loops import Loops
from ...statements import Block, Branch, Call, Loop, Statement
from . import own_range

_COUNTED = Statement("at", "1", "+=")
_AS_LONG = "BLOCK_N == 64 and WORKERS == 2"
"""Where a tile may hide all its keys from one of two workers; three issue products in turns, so that each needs all."""


@dataclass(frozen=True)
class Walk:
    """The walk of a worker, and of the warp that loads for all of them."""

    loops: Loops
    first_taken: tuple[str, ...]  # what the first tile of a range takes
    taken: tuple[str, ...]  # what each further one takes
    before_full: tuple[Block, ...] = ()  # what leaves full tiles out

    @property
    def spans(self) -> int:
        """How many ranges of tiles there are."""
        return len(self.loops.tiles.ends)

    @property
    def own(self) -> bool:
        """True if workers may see other tiles than the program's: those of one range, by their own rows."""
        return self.loops.by_place

    @property
    def range(self) -> tuple[Block, ...]:
        """The statements that work a worker's range out, for what they read."""
        return (*self._own_rows, *self.loops.range)

    def spanned(self, visit: tuple[Block, ...]) -> tuple[Block, ...]:
        """The visit of each range of a program's tiles, once the range is worked out."""
        body = (*self.loops.range_for(visit), *visit)
        return (Loop("span", "0", str(self.spans), body),) if self.spans > 1 else body

    @property
    def blocks(self) -> tuple[Block, ...]:
        """A worker's walk; it passes by the tiles of other workers' rows, which it has to give back all the same."""
        if not self.own:
            return self.spanned(self._visit)
        return (
            *self._own_rows,
            *self.loops.range_for(self._visit),
            Branch(_AS_LONG, (*own_range.WITHIN, _passed("high - last"))),
            *self._visit,
            Branch(_AS_LONG, (_passed("first - low"),)),
        )

    @property
    def _own_rows(self) -> tuple[Block, ...]:
        """The statements that make a tile's queries those of one worker, where tiles of keys are as long."""
        own = (
            Statement("q_first", "tl.minimum(q_first + WORKER * 64, q_last)"),
            Statement("q_last", "tl.minimum(q_first + 63, q_last)"),
        )
        return (Branch(_AS_LONG, own_range.rows(self.loops, "rows", own)),) if self.own else ()

    @property
    def _visit(self) -> tuple[Block, ...]:
        """A worker's loops over the tiles of one range, from the last one back."""
        tiles = self.loops.tiles

        def over(begin: str, end: str, mixed: str) -> Loop:
            body = (
                Statement("k_start", f"({begin} + {end} - 1 - j) * BLOCK_N"),
                Call("acc, m, l, packed", "attend", (*self.taken, f"mixed={mixed}")),
                _COUNTED,
            )
            return Loop("j", begin, end, body)

        rest = Statement("rest", "last - 1", label="tiles before this one remain")
        loops: tuple[Block, ...] = (rest, over("first", "rest", "True"))
        if tiles.full:
            loops = (
                *self.before_full,
                rest,
                over("full_last", "rest", "True"),
                Statement("rest", "tl.minimum(full_last, rest)"),
                over("full_first", "rest", "False"),
            )
        if tiles.full and tiles.left:
            loops += (Statement("rest", "tl.minimum(full_first, rest)"), over("first", "rest", "True"))
        begin = (
            Statement("k_start", "(last - 1) * BLOCK_N"),
            # never `_`, which a loop around may have set: to the compiler that is one variable, of one type
            Call("shrink, m, l, packed", "attend_first", self.first_taken),
            *((Statement("acc", "acc * shrink[:, None]"),) if self.spans > 1 else ()),
            _COUNTED,
            Statement("visits", "1", "+="),
        )
        end = Statement("acc", "add_last(at, acc, packed, buffers, STAGES, WEIGHTS)")
        return (Branch("last > first", (*begin, *loops, end)),)


def _passed(count: str) -> Statement:
    return Statement("at", f"pass_by(at, {count}, buffers, STAGES)")
