"""The parts of the backward pass on the host: their launches, and the room for what they compute."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .families.family import Tables
from .kernel_terms import Sum
from .parameters import Kernel


@dataclass(frozen=True)
class Pass:
    """A backward kernel as the host launches it."""

    kernel: Kernel
    condition: str  # text of whether some gradient that it computes is wanted; "" if it always runs
    made: tuple[str, ...]  # statements that allocate its outputs
    partial: tuple[tuple[str, str], ...]  # sums with a value for each program, and the texts that allocate them
    apart: bool  # whether wide heads take a separate launch for each gradient that it computes


def with_room(made: dict[int, tuple[str, str]]) -> str:
    """Text that allocates the gradients that a kernel stores, even those that are not wanted."""
    if len(made) == 1:
        ((i, (grad, x)),) = made.items()
        return f"{grad} = {grad} if wanted[{i}] else runtime.empty_like({x})"
    pairs = ", ".join(f"({grad}, {x})" for grad, x in made.values())
    names = ", ".join(grad for grad, _ in made.values())
    return f"{names} = (x if x.numel() else runtime.empty_like(y) for x, y in ({pairs}))"


def apart(tables: Tables, places: Mapping[Sum, int], tiles: str) -> Pass:
    """The launch of the kernel of tables' gradients.

    `places` are the indices of the gradients that sums are part of, `tiles` is text of the number of tiles of queries.
    """
    wanted = dict.fromkeys(f"wanted[{places[s]}]" for s in tables.sums)
    partial = []
    for s in tables.sums:
        there = f" if wanted[{places[s]}] else None" if len(wanted) > 1 else ""
        partial.append((s.name, f"lse.new_zeros({tables.room}, {tiles}, {math.prod(s.access.input.sizes)}){there}"))
    condition = f"({' or '.join(wanted)})" if len(wanted) > 1 else " or ".join(wanted)
    return Pass(tables.kernel, f"apart and {condition}", (), tuple(partial), False)
