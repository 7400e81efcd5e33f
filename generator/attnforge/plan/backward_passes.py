"""The parts of the backward pass on the host: their launches, and the room for what they compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from .families.family import Tables
from .families.hopper.hopper import Hopper
from .kernel_terms import Sum
from .package_kernels import PackageKernels
from .parameters import Kernel
from .reduction import Reduction


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


def at_once(hopper: Hopper, learned: Iterable[Reduction], tables: Tables | None) -> str:
    """Text of whether kernels for Hopper GPUs may serve a call: others compute all gradients that they do not."""
    made = {*hopper.summed, *((hopper.pairs.total,) if hopper.pairs else ())}
    narrow, apart, found = {*hopper.of_narrow_heads}, {*(tables.sums if tables else ())}, [*hopper.pairs.fits]
    for i, one in enumerate(learned, 3):
        if not one.made_of(made):
            found.append(f"(apart or not wanted[{i}])" if one.made_of(apart) else f"not wanted[{i}]")
        elif narrow & {*one.sums}:
            found.append(f"(not wanted[{i}] or q.shape[-1] <= 128)")
    return " and ".join(found)


def apart(p: PackageKernels, places: Mapping[Sum, int], still_wanted: Callable[[int], str]) -> Iterator[Pass]:
    """The launches of kernels that compute gradients of inputs apart from the others.

    `places` are the indices of the gradients that sums are part of; `still_wanted` gives the text of whether one is
    left to compute.
    """
    for pair in p.pairs:
        total = Sum(pair.access)
        room = f"{total.name} = lse.new_empty({pair.batches}, {pair.heads}, q.shape[1], k.shape[1])"
        yield Pass(pair.kernel, still_wanted(places[total]), (room,), (), False)
    if p.tables:
        yield _of_tables(p, p.tables, places)


def _of_tables(p: PackageKernels, tables: Tables, places: Mapping[Sum, int]) -> Pass:
    """The launch of the kernel of tables' gradients."""
    wanted = dict.fromkeys(f"wanted[{places[s]}]" for s in tables.sums)
    partial = []
    for s in tables.sums:
        there = f" if wanted[{places[s]}] else None" if len(wanted) > 1 else ""
        room = f"{tables.room}, {p.tiles('q')}, {math.prod(s.access.input.sizes)}"
        partial.append((s.name, f"lse.new_zeros({room}){there}"))
    condition = f"({' or '.join(wanted)})" if len(wanted) > 1 else " or ".join(wanted)
    return Pass(tables.kernel, f"apart and {condition}", (), tuple(partial), False)
