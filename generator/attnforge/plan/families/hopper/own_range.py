"""Ranges of tiles that a worker's own rows see, within the range of all workers of a program."""

from __future__ import annotations

from ...loops import Loops
from ...statements import Block, Comment, Statement

WITHIN = (
    Statement("last", "tl.minimum(tl.maximum(last, low), high)"),
    Statement("first", "tl.minimum(tl.maximum(first, low), last)"),
)
"""Clamps a worker's range to that of all workers: a range with tiles lies inside it, an empty one may be anywhere."""


def rows(loops: Loops, owned: str, own: tuple[Block, ...]) -> tuple[Block, ...]:
    """The statements that save the range of all workers, then narrow the tile's bounds to a worker's `own` rows."""
    saved = Statement("low, high", "first, last", label="the range of all workers")
    return (
        Comment(f"tiles are as long as the {owned} of a worker, so each worker has its own range"),
        *loops.range_for((saved,)),
        saved,
        *own,
    )
