"""The positions of rows: keys count from a sequence's first key, queries from the first query's position."""

from __future__ import annotations

from ..expressions.tree import Node
from .sides import BLOCKS, OTHER, Side
from .statements import Statement

BEGIN = "q_begin"
"""The name of the position of a sequence's first query; the storage has the text that computes it."""
FIRST = Node("var", (), BEGIN, "int")
"""The same as an expression."""


def of(row: str) -> str:
    """Text of the position of a query's row."""
    return f"{row} + {BEGIN}"


def row(position: str) -> str:
    """Text of the row of the query at this position."""
    return f"{position} - {BEGIN}"


def ends(side: Side, start: str) -> tuple[Statement, Statement]:
    """The statements that compute the first and last position of one side's tile; `start` is its first row."""
    first, past = (of(start), of("q_len")) if side == "q" else (start, "k_len")
    last = f"tl.minimum({side}_first + {BLOCKS[side]}, {past}) - 1"
    return Statement(f"{side}_first", first), Statement(f"{side}_last", last)


def of_first(side: Side) -> str:
    """Text of the position of the first row of a side."""
    return BEGIN if side == "q" else "0"


def as_floats(down: Side) -> Statement:
    """The statement that turns positions into floats with the same distances; the rows of `down` run down a tile."""
    across = OTHER[down]
    first = "k_start" if across == "k" else "q_first"
    value = f"moved({down}_pos[:, None], {across}_pos[None, :], {first})"
    shape = f"[{BLOCKS[down]}, {BLOCKS[across]}], [1, {BLOCKS[across]}]"
    return Statement(f"{down}_at, {across}_at", value, shape=shape)
