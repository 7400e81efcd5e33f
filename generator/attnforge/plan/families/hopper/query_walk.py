"""How workers of the backward pass for Hopper GPUs loop over tiles of queries: each over those that see its keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...loops import Loops
from ...statements import Block, Branch, Call, Loop, Statement
from . import own_range

_AS_LONG = "BLOCK_M == 64 and GROUP > 1"
"""The condition under which all of a worker's keys may be hidden from a tile of queries, which has as many queries as a
worker has keys; with one query head per key head, a range per worker was measured to gain as often as it loses."""

_PASSED = ("at", "keys_of", "exchange", "queries", "BLOCK_D", "STAGES", "WORKER")


@dataclass(frozen=True)
class QueryWalk:
    """The walk of a worker."""

    loops: Loops
    own: bool  # whether workers may have ranges of their own; all heads of a group then see the same tiles

    def range_for(self, walk: Iterable[Block]) -> tuple[Block, ...]:
        """The statements that compute a worker's range, with the bounds of full tiles that a walk over it reads."""
        if not self.own:
            return self.loops.range_for(walk)
        found = self.loops.range_for((*own_range.WITHIN, *walk))
        own = Branch(
            "WORKER == 0",
            (Statement("k_last", "tl.minimum(k_first + 63, k_last)"),),
            (Statement("k_first", "tl.minimum(k_first + 64, k_last)"),),
        )
        rows = own_range.rows(self.loops, "keys", (own,))
        return (Branch(_AS_LONG, rows), *found, Branch(_AS_LONG, own_range.WITHIN))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The statements that visit a worker's tiles; it passes by those that see only the other worker's keys."""
        if not self.own:
            return self.loops.blocks
        return (_passed("low", "first"), *self.loops.visit, _passed("last", "high"))


def _passed(begin: str, end: str) -> Branch:
    return Branch(_AS_LONG, (Loop("_", begin, end, (Call("at", "pass_by", _PASSED),)),))
