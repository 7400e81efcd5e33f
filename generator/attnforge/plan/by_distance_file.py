"""The file of a package whose kernels evaluate parts of scores by distance: by_distance.py."""

from __future__ import annotations

from dataclasses import dataclass

from .by_distance import ByDistance
from .families.hopper.by_distance import SummedPart
from .families.hopper.hopper import Hopper
from .parameters import Kernel
from .statements import code_names


@dataclass(frozen=True)
class ByDistanceFile:
    """Its kernels: those that evaluate, and those that add up what kernels for Hopper GPUs sum by distance."""

    values: ByDistance
    portable: ByDistance | None  # those that portable kernels read
    summed: tuple[tuple[SummedPart, Kernel], ...]
    known: frozenset[str]  # the names that kernels.py defines

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All of them."""
        return (*self.values.kernels, *(kernel for _, kernel in self.summed))

    @property
    def imports(self) -> tuple[str, ...]:
        """The names that the file imports from kernels.py."""
        return tuple(sorted(code_names(*(kernel.blocks["body"] for kernel in self.kernels)) & self.known))

    @property
    def about(self) -> str:
        """What its values are for."""
        found = ["Kernels read a value for each score instead of computing it."]
        if self.values.entries:
            found.append("For gradients of tables, they read which entry a score has as well.")
        if any(part.slopes for part in self.values.parts):
            found.append("Derivatives with respect to what such a part reads are evaluated likewise.")
        if self.summed:
            found.append("Those for Hopper GPUs add up dS by distance; these sums are then added up by entry.")
        return " ".join(found)


def build(
    values: ByDistance | None, portable: ByDistance | None, hopper: Hopper | None, known: frozenset[str]
) -> ByDistanceFile | None:
    """The file, if the variant has such parts; `known` are the names that kernels.py defines."""
    if not values:
        return None
    summed = hopper.by_distance.launched if hopper and hopper.backward and hopper.by_distance else ()
    return ByDistanceFile(values, portable, summed, known)
