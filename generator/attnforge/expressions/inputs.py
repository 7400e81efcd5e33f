"""The parts of a call that expressions read: tensors and scalars with their axes, and options set at run time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .tree import Node

ROW_AXES = ("query", "key", "token")
HEAD_AXES = ("batch", "head", "kv_head")
AXES = (*HEAD_AXES, *ROW_AXES)
Kind = Literal["batch", "head", "kv_head", "query", "key", "token", "size", "distance"]


@dataclass(frozen=True)
class Axis:
    """An axis of an input; a size that an option gives is the option's name until the option has its value.

    The same holds for numbers of a call that divide an axis of batch entries. An axis of distances, from key to query,
    belongs to what kernels have evaluated for every distance: specs cannot declare one.
    """

    kind: Kind
    size: int | str = 0  # number of entries of a table's axis
    per: int | str = 1  # number of query or key positions, or of batch entries, for each entry
    rest: bool = False  # whether there are `per` entries instead, which batch entries use in turn

    def __str__(self) -> str:
        """The axis as a spec declares it."""
        return str(self.size) if self.kind == "size" else self.place(self.kind)

    @property
    def divided(self) -> bool:
        """True if several positions, or batch entries, share an entry."""
        return self.per != 1 or self.rest

    def place(self, position: str) -> str:
        """Text of the index of the entry for a position or batch entry."""
        return f"{position} {'%' if self.rest else '//'} {self.per}" if self.divided else position

    def count(self, positions: str) -> str:
        """Text of the number of entries for a number of positions or batch entries."""
        if self.kind == "size":
            return str(self.size)
        return str(self.per) if self.rest else f"-(-{positions} // {self.per})" if self.divided else positions

    def filled(self, numbers: Mapping[str, object]) -> Axis:
        """The axis with values in place of their names, if they are known."""
        named = {x: int(str(numbers[x])) for x in (self.size, self.per) if isinstance(x, str) and x in numbers}
        size, per = (named.get(x, x) if isinstance(x, str) else x for x in (self.size, self.per))
        return dataclasses.replace(self, size=size, per=per)


@dataclass(frozen=True)
class Input:
    """A tensor (or, without axes, a scalar) that expressions read and `attention` takes as a keyword."""

    name: str
    axes: tuple[Axis, ...]
    dtype: Literal["float", "int", "bool"] = "float"
    grad: bool = False
    scan: Literal["cumsum"] | None = None
    default: Node | None = None  # expression of h and heads that kernels use if a call gives none
    description: str = ""
    minimum: float | None = None  # limits of its values: promised by the caller, checked for a scalar
    maximum: float | None = None
    source: str = ""  # name of the spec's input, if this is a part of the data that kernels take for it
    part: int = 0
    value: int | float | bool | None = None  # value of all its entries if a call gives none
    keyword: str = ""  # keyword of `attention`, if `name` is the name in generated code

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of the axes, in their order."""
        return tuple(axis.kind for axis in self.axes)

    @property
    def written(self) -> tuple[int, ...]:
        """The numbers of the axes that an expression has to index explicitly."""
        kinds = self.kinds
        by_hand = {"token", "size"} | {kind for kind in kinds if kinds.count(kind) > 1}
        return tuple(i for i, kind in enumerate(kinds) if kind in by_hand)

    @property
    def rows(self) -> tuple[Kind, ...]:
        """The axes that run over tokens."""
        return tuple(kind for kind in self.kinds if kind in ROW_AXES)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of its axes as a table."""
        return tuple(int(axis.size) for axis in self.axes if axis.kind == "size")

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of numbers of the call, or of options without a value yet, that divide axes."""
        return tuple(axis.per for axis in self.axes if isinstance(axis.per, str))

    def behind_numbers(self, inputs: Mapping[str, Input]) -> tuple[Input, ...]:
        """The numbers of the call that determine sizes of its axes, then the input: they are checked in this order."""
        return *(inputs[name] for name in self.numbers), self

    @property
    def shared_batch(self) -> Axis | None:
        """Its axis of batch entries, if several of them share an entry."""
        return next((axis for axis in self.axes if axis.kind == "batch" and axis.divided), None)

    @property
    def shared(self) -> bool:
        """True if all tokens and batch entries have the same values, as they have of a model's parameter."""
        return not self.rows and "batch" not in self.kinds

    @property
    def packed(self) -> Input:
        """The input for packed sequences: their rows are concatenated, so each sequence has rows of its own."""
        axes = self.axes if not self.rows or "batch" in self.kinds else (Axis("batch"), *self.axes)
        return dataclasses.replace(self, axes=axes)

    @property
    def per_key(self) -> bool:
        """True if each key may have a value of its own."""
        return any(axis.kind in ("key", "token") and axis.per == 1 for axis in self.axes)

    @property
    def pairs(self) -> bool:
        """True if each score may have a value of its own."""
        return {"query", "key"} <= set(self.kinds)

    @property
    def no_gradient(self) -> str:
        """Why its type or axes keep it from having a gradient; "" if they do not."""
        if self.dtype != "float":
            return f"only float inputs have a gradient, {self.name} is {self.dtype}"
        if not self.axes:
            return f"{self.name} is a number of the call, without axes: it has no gradient"
        if any(axis.divided and axis.kind in ROW_AXES for axis in self.axes):
            return "an axis with one entry for several positions has no gradient"
        if len(self.rows) > 1 and (self.sizes or not self.pairs):
            return f"an input with the axes {' and '.join(self.kinds)} has no gradient"
        return ""

    def filled(self, numbers: Mapping[str, object]) -> Input:
        """The input with values in place of their names in axes."""
        return dataclasses.replace(self, axes=tuple(axis.filled(numbers) for axis in self.axes))


@dataclass(frozen=True)
class RuntimeOption:
    """A term's option that the spec left to the call; becomes a keyword of `attention`."""

    keyword: str
    type: Literal["int", "float"]
    minimum: float | None = None
    maximum: float | None = None
