"""The orders in which kernels loop over queries and keys: the current one, and historical steps towards it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from ..expressions.inputs import Input
from ..source.errors import Problems
from ..source.fields import Fields


@dataclass(frozen=True)
class Algorithm:
    """The properties that distinguish the kernels of an algorithm."""

    name: str
    walks: tuple[Literal["q", "k"], ...]  # the sides that kernels loop over
    backward: bool = False  # whether there is a backward pass

    @property
    def by_query(self) -> bool:
        """Whether a program of the forward pass owns one tile of queries and loops over the keys."""
        return "k" in self.walks

    def seen(self, given: Input) -> Input:
        """An input as kernels see it: without a backward pass nothing gets a gradient."""
        return given if self.backward else dataclasses.replace(given, grad=False)


FLASH2 = Algorithm("flash2", ("k", "q"), backward=True)
ALGORITHMS = {
    one.name: one
    for one in (
        FLASH2,
        Algorithm("flash1", ("q",)),
        Algorithm("flash2_strided_k", ("k",)),
    )
}


def read(fields: Fields, problems: Problems) -> Algorithm:
    """The algorithm of a spec; reports inputs that ask for a gradient if it has no backward pass."""
    found = ALGORITHMS[fields.choice("algorithm", ALGORITHMS, FLASH2.name)]
    inputs = fields.get("inputs")
    for given in inputs.entries() if inputs and not found.backward else ():
        for key in given.value.entries():
            if key.key == "grad" and key.value.data is True:
                why = f"{given.key} gets no gradient: the algorithm {found.name} has no backward pass"
                problems.add(key.value.at, f"{why}; leave grad out")
    return found
