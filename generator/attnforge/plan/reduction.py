"""The gradient of an input on the host: from the kernels' sums to the input's own axes."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from ..expressions.inputs import Input
from .kernel_terms import Sum


@dataclass(frozen=True)
class Reduction:
    """How the host computes an input's gradient from its sums."""

    input: Input
    sums: tuple[Sum, ...]
    idle: tuple[Sum, ...]  # the sums that are 0 unless the LSE has a gradient
    text: str  # torch text of the gradient, over `total`

    @property
    def total(self) -> str:
        """Text of all sums added up."""
        every, most = (" + ".join(s.name for s in self.sums if s not in left) for left in ((), self.idle))
        return f"{most} if dlse is None else {every}" if self.idle else every

    def made_of(self, sums: Set[Sum]) -> bool:
        """True if kernels that compute these sums compute all of it."""
        return bool(self.sums) and {*self.sums} <= sums
