"""Reads of parts of scores that have been evaluated for every distance from key to query: see by_distance.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .access import Access
from .statements import Statement


@dataclass(frozen=True)
class Partial:
    """The derivative of a part with respect to an access in it: a number, or the name of its values by distance."""

    access: Access
    slope: float | str

    @property
    def entries(self) -> str:
        """The name of the indices, by distance, of the entries that the access reads."""
        return f"{self.access.name}_entries"

    @property
    def steps(self) -> str:
        """The name of the numbers of changes of these indices, up to each distance."""
        return f"{self.access.name}_steps"

    @property
    def tables(self) -> dict[str, str]:
        """The names of what kernels read by distance for the gradient, with the types of pointers to it."""
        found = {self.slope: "*fp32"} if isinstance(self.slope, str) else {}
        return found | (dict.fromkeys((self.entries, self.steps), "*i32") if self.access.form == "entry" else {})


@dataclass(frozen=True)
class PartRead:
    """A part of scores, by the name of its values; all tensors by distance have rows of the same length."""

    name: str
    partials: tuple[Partial, ...] = ()  # with respect to inputs that learn

    @property
    def row(self) -> str:
        """The name of the place of a head's row."""
        return f"{self.name}_row"

    def place(self, values: str, distance: str) -> str:
        """Text of the pointer to the value at a distance."""
        return f"{values}_ptr + {self.row} + ({distance})"

    def load(self, values: str, way: Callable[[str], str]) -> str:
        """Text that loads a value for each score; `way` is the index that broadcasts a vector of a side's rows."""
        distance = f"q_pos{way('q')} - k_pos{way('k')}"
        return f"tl.load({self.place(values, distance)})"


@dataclass(frozen=True)
class DistanceReads:
    """All such parts of a variant, and the accesses of its terms, parts included, as they are numbered."""

    parts: tuple[PartRead, ...] = ()
    accesses: tuple[Access, ...] = ()

    def inside(self, access: Access) -> frozenset[Access]:
        """The accesses that learn in a part which kernels read."""
        return frozenset(x.access for part in self.parts if part.name == access.name for x in part.partials)

    def loads(self, access: Access, opens: bool, steps: bool, way: Callable[[str], str]) -> Iterator[Statement]:
        """The statements that read a part: one where a head `opens`, and one in each of its `steps`."""
        for part in self.parts:
            if part.name == access.name and opens:
                yield Statement(part.row, f"tl.cast(h, tl.int64) * {part.name}_stride_head")
            elif part.name == access.name and steps:
                shape = "[BLOCK_M, BLOCK_N]" if way("q") == "[:, None]" else "[BLOCK_N, BLOCK_M]"
                yield Statement(part.name, part.load(part.name, way), shape=shape)


NOTHING = DistanceReads()
"""Kernels that read nothing by distance, or whose family loads it in a way of its own."""
