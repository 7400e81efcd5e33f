"""The position of a sequence's first query; keys are counted from 0."""

from __future__ import annotations

from dataclasses import dataclass

from ..expressions.tree import Node
from .sides import BLOCKS, Side
from .statements import Statement


@dataclass(frozen=True)
class Positions:
    """Positions of rows, as texts of kernels and as expressions."""

    shift: str  # text of the position of the first query
    first: Node  # the same as an expression

    def of(self, row: str) -> str:
        """Text of the position of a query's row."""
        return f"{row} + ({self.shift})"

    def row(self, position: str) -> str:
        """Text of the row of the query at a position."""
        return f"{position} - ({self.shift})"

    def ends(self, side: Side, start: str) -> tuple[Statement, Statement]:
        """The statements that make the first and the last position of a tile of a side; `start` is its first row."""
        first = self.of(start) if side == "q" else start
        last = f"tl.minimum({side}_first + {BLOCKS[side]}, k_len) - 1"
        return Statement(f"{side}_first", first), Statement(f"{side}_last", last)

    def of_first(self, side: Side) -> str:
        """Text of the position of the first row of a side."""
        return self.shift if side == "q" else "0"


_LENGTHS = tuple(Node("var", (), name, "int") for name in ("k_len", "q_len"))
ENDS_TOGETHER = Positions("k_len - q_len", Node("-", _LENGTHS, None, "int"))
"""The last query lines up with the last key."""
