"""A kernel's read of an input: one value, one for each row or key, one for each score, or entries of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..expressions.inputs import HEAD_AXES, ROW_AXES, Axis, Input
from ..expressions.tree import Node
from .sides import SIDE_OF, Side

Site = Literal["program", "head", "tile", "step", "mask"]
TYPES = {"float": "tl.float32", "int": "tl.int32", "bool": "tl.int1"}
CASTS = {kind: f".to({name})" for kind, name in TYPES.items()}


@dataclass(frozen=True)
class Access:
    """An input as an expression reads it, with the indices written there for the axes that need one."""

    input: Input
    index: tuple[Node, ...] = ()
    number: int = 0  # its number among the different ways in which this input is indexed

    @property
    def form(self) -> Literal["value", "row", "pair", "distance", "entry"]:
        """The values that a tile reads: one, one for each row, score or distance, or looked-up entries."""
        kinds = [kind for kind in self.input.kinds if kind not in HEAD_AXES]
        if not kinds:
            return "value"
        if kinds == ["distance"]:
            return "distance"
        if sorted(kinds) == ["key", "query"]:
            return "pair"
        return "row" if len(kinds) == 1 and self.tie and not self.row_axis.divided else "entry"

    @property
    def block(self) -> int:
        """How many neighbouring queries, and how many keys, share a value of pairs: the smaller of the two numbers."""
        return min(self.shared.values(), default=1)

    @property
    def shared(self) -> dict[Side, int]:
        """How many queries, and how many keys, share a whole number or truth value of pairs; empty for other reads."""
        paired = self.form == "pair" and self.input.dtype != "float"
        axes = [axis for axis in self.input.axes if axis.kind in SIDE_OF] if paired else []
        return {SIDE_OF[axis.kind]: axis.per for axis in axes if isinstance(axis.per, int)}

    @property
    def tie(self) -> Side | None:
        """The side whose position indexes its only axis of rows, if there is one."""
        if len(self.input.rows) != 1:
            return None
        if self.input.rows[0] != "token":
            return SIDE_OF[self.input.rows[0]]
        position = self.index[[self.input.kinds[i] for i in self.input.written].index("token")]
        if position.op != "var":
            return None
        return "q" if position.value == "q" else "k" if position.value == "k" else None

    @property
    def side(self) -> Side | None:
        """The side for each of whose rows it has one value, if there is one."""
        return self.tie if self.form == "row" else None

    @property
    def name(self) -> str:
        """The name of its value in kernels."""
        ending = {"value": "", "row": f"_{self.tie}", "pair": "_qk", "distance": "", "entry": f"_at{self.number or ''}"}
        return self.input.name + ending[self.form]

    @property
    def row_axis(self) -> Axis:
        """The axis of rows."""
        return next(axis for axis in self.input.axes if axis.kind in ROW_AXES)


def rows_along(axis: Axis) -> str:
    """Text of the number of rows along an axis of rows."""
    return "q_len" if axis.kind == "query" else "k_len"


def entries_along(axis: Axis) -> str:
    """Text of the number of entries of an axis of rows or of a table."""
    if axis.kind == "size":
        return str(axis.size)
    return f"tl.cdiv({rows_along(axis)}, {axis.per})" if axis.divided else rows_along(axis)
