"""Ranges of tiles that a worker's own rows see, of those that all workers of a program walk along."""

from __future__ import annotations

from ...loops import Loops
from ...statements import Block, Comment, Statement

WITHIN = (
    Statement("last", "tl.minimum(tl.maximum(last, low), high)"),
    Statement("first", "tl.minimum(tl.maximum(first, low), last)"),
)
"""What moves a worker's range into that of all: one that has tiles lies there, an empty one may stand anywhere."""


def rows(loops: Loops, owned: str, own: tuple[Block, ...]) -> tuple[Block, ...]:
    """The statements that keep the range of all workers, and make the tile's ends those of a worker's `own` rows."""
    return (
        Comment(f"tiles are as long as the {owned} of a worker, so each worker has its own range"),
        *loops.range_for(()),
        Statement("low, high", "first, last", label="the range of all workers"),
        *own,
    )
