"""The positions of rows: keys are counted from a sequence's first one, queries from that of the first query."""

from __future__ import annotations

from ..expressions.tree import Node
from .sides import BLOCKS, OTHER, Side
from .statements import Statement

BEGIN = "q_begin"
"""The name of the position of a sequence's first query; its storage has the text."""
FIRST = Node("var", (), BEGIN, "int")
"""The same as an expression."""


def of(row: str) -> str:
    """Text of the position of a query's row."""
    return f"{row} + {BEGIN}"


def row(position: str) -> str:
    """Text of the row of the query at a position."""
    return f"{position} - {BEGIN}"


def ends(side: Side, start: str) -> tuple[Statement, Statement]:
    """The statements that make the first and the last position of a tile of a side; `start` is its first row."""
    first, past = (of(start), of("q_len")) if side == "q" else (start, "k_len")
    last = f"tl.minimum({side}_first + {BLOCKS[side]}, {past}) - 1"
    return Statement(f"{side}_first", first), Statement(f"{side}_last", last)


def of_first(side: Side) -> str:
    """Text of the position of the first row of a side."""
    return BEGIN if side == "q" else "0"


def as_floats(down: Side) -> Statement:
    """The statement that makes floats as far apart as a tile's positions are; one side's rows run down the tile."""
    across = OTHER[down]
    first = "k_start" if across == "k" else "q_first"
    value = f"moved({down}_pos[:, None], {across}_pos[None, :], {first})"
    shape = f"[{BLOCKS[down]}, {BLOCKS[across]}], [1, {BLOCKS[across]}]"
    return Statement(f"{down}_at, {across}_at", value, shape=shape)
