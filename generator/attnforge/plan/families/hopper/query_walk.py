"""How workers of the backward pass for Hopper GPUs walk over tiles of queries: each over those that its keys see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...loops import Loops
from ...statements import Block, Branch, Call, Loop, Statement
from . import own_range

_AS_LONG = "BLOCK_M == 64 and GROUP > 1"
"""Where all of a worker's keys may be hidden from a tile of queries, which has as many as a worker has keys; with one
query head to a key head, a range of its own was measured to gain as often as it loses."""

_PASSED = ("at", "k_tiles", "exchange", "queries", "BLOCK_D", "STAGES", "WORKER")


@dataclass(frozen=True)
class QueryWalk:
    """The walk of a worker."""

    loops: Loops
    own: bool  # whether workers may see other tiles than the program's; all heads of a group see the same then

    def range_for(self, walk: Iterable[Block]) -> tuple[Block, ...]:
        """The statements that work a worker's range out, as far as a walk over it needs to know of full tiles."""
        found = self.loops.range_for(walk)
        if not self.own:
            return found
        own = Branch(
            "WORKER == 0",
            (Statement("k_last", "tl.minimum(k_first + 63, k_last)"),),
            (Statement("k_first", "tl.minimum(k_first + 64, k_last)"),),
        )
        rows = own_range.rows(self.loops, "keys", (own,))
        return (Branch(_AS_LONG, rows), *found, Branch(_AS_LONG, own_range.WITHIN))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The statements that visit a worker's tiles; it passes by those that the other one's keys alone see."""
        if not self.own:
            return self.loops.blocks
        return (_passed("low", "first"), *self.loops.visit, _passed("last", "high"))


def _passed(begin: str, end: str) -> Branch:
    return Branch(_AS_LONG, (Loop("_", begin, end, (Call("at", "pass_by", _PASSED),)),))
