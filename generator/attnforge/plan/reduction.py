"""The gradient of an input on the host: from the kernels' sums to the input's own axes."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from ..expressions.inputs import Input
from .kernel_terms import Sum


@dataclass(frozen=True)
class Reduction:
    """What is made of an input's sums."""

    input: Input
    sums: tuple[Sum, ...]
    idle: tuple[Sum, ...]  # those that are 0 unless the LSE has a gradient
    text: str  # over `total`, the sums added up

    @property
    def total(self) -> str:
        """Text of all sums added up."""
        every, most = (" + ".join(s.name for s in self.sums if s not in left) for left in ((), self.idle))
        return f"{most} if dlse is None else {every}" if self.idle else every

    def served(self, made: Set[Sum], wanted: str) -> str:
        """Text of which calls kernels may serve that make some sums alone, and `wanted` if it learns; "" if all."""
        every = {*self.sums}
        if not made or not every - {*self.idle} <= made:
            return f"not {wanted}"
        return "" if every <= made else f"(dlse is None or not {wanted})"
