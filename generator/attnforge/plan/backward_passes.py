"""The parts of the backward pass on the host: their launches, and the room for what they compute."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from .families.family import Tables
from .families.hopper.hopper import Hopper
from .kernel_terms import KernelTerms, Sum
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


def at_once(hopper: Hopper, learned: Iterable[Reduction], tables: Tables | None) -> str:
    """Text of whether kernels for Hopper GPUs may serve a call: others compute all gradients that they do not."""
    made = {*hopper.summed, *((hopper.pairs.total,) if hopper.pairs else ())}
    narrow, apart, found = {*hopper.of_narrow_heads}, {*(tables.sums if tables else ())}, [*hopper.fits]
    for i, one in enumerate(learned, 3):
        if not one.made_of(made):
            found.append(f"(apart or not wanted[{i}])" if one.made_of(apart) else f"not wanted[{i}]")
        elif narrow & {*one.sums}:
            found.append(f"(not wanted[{i}] or q.shape[-1] <= 128)")
    return " and ".join(found)


@dataclass(frozen=True)
class Passes:
    """The parts of a variant's backward pass; gradients of inputs follow those of q, k and v."""

    kernels: PackageKernels
    learned: tuple[Reduction, ...]
    at_once: tuple[Sum, ...]  # the sums that kernels for Hopper GPUs compute along with the gradients of q, k and v
    stored: Sum | None  # the sum that these may store as a gradient instead

    @cached_property
    def places(self) -> dict[Sum, int]:
        """For each sum, the index of the gradient that it is part of."""
        return {s: 3 + i for i, r in enumerate(self.learned) for s in r.sums}

    def still_wanted(self, place: int) -> str:
        """Text of whether a gradient is left to compute after the kernels for Hopper GPUs."""
        stored = self.stored is not None and self.places[self.stored] == place
        return f"wanted[{place}]" + (f" and not gradients[{place}].numel()" if stored else "")

    @property
    def all(self) -> tuple[Pass, ...]:
        """The parts that compute the gradients of q, k and v, and what these kernels sum up along the way."""
        a, own = self.kernels.analysis, self.kernels.own
        if not (own.dq and own.dkv):
            return ()
        made = {1: ("dk", "k"), 2: ("dv", "v")}
        return self._of(own.dq, a.by_query, {0: ("dq", "q")}), self._of(own.dkv, a.by_key, made)

    @property
    def apart(self) -> Iterator[Pass]:
        """Those that compute gradients of inputs apart from the others, whichever kernels compute these."""
        for pair in self.kernels.pairs:
            total = Sum(pair.access)
            shape = f"{pair.batches}, {pair.heads}, q.shape[1], k.shape[1]"
            room = f"{total.name} = runtime.room_for_sums({pair.access.input.name}, {shape})"
            yield Pass(pair.kernel, self.still_wanted(self.places[total]), (room,), (), False)
        if self.kernels.tables:
            yield self._of_tables(self.kernels.tables)

    def _of_tables(self, tables: Tables) -> Pass:
        """The launch of the kernel of tables' gradients."""
        wanted = dict.fromkeys(f"wanted[{self.places[s]}]" for s in tables.sums)
        partial = []
        for s in tables.sums:
            there = f" if wanted[{self.places[s]}] else None" if len(wanted) > 1 else ""
            room = f"{tables.room}, {self.kernels.tiles('q')}, {math.prod(s.access.input.sizes)}"
            partial.append((s.name, f"lse.new_zeros({room}){there}"))
        condition = f"({' or '.join(wanted)})" if len(wanted) > 1 else " or ".join(wanted)
        return Pass(tables.kernel, f"apart and {condition}", (), tuple(partial), False)

    def _of(self, kernel: Kernel, terms: KernelTerms, made: dict[int, tuple[str, str]]) -> Pass:
        """The launch of a kernel that stores the gradients in `made`, by their index, of the tensors named there."""
        wanted = [*made, *dict.fromkeys(self.places[s] for s in terms.learned)]
        lines, partial = [_with_room(made)], list[tuple[str, str]]()
        for s in terms.learned:
            if s.access.tie is None:
                entries = f", {math.prod(s.access.input.sizes)}" if s.access.form == "entry" else ""
                shape = f"{self.kernels.storage.sequences}, q.shape[-2], {self.kernels.tiles('q')}{entries}"
                partial.append((s.name, f"lse.new_zeros({shape}){self._wanted(s)}"))
            elif s not in self.at_once:
                lines.append(self.room(s))
        lines += [f"{name} = None" for name, _ in partial]
        # the first one computes delta, which the others read
        condition = "" if kernel is self.kernels.own.dq else " or ".join(f"wanted[{i}]" for i in wanted)
        return Pass(kernel, condition, tuple(lines), tuple(partial), len(made) > 1)

    def _wanted(self, total: Sum) -> str:
        """The end of an expression that allocates a sum: it is None unless the call wants the sum."""
        idle = " and dlse is not None" if any(total in r.idle for r in self.learned) else ""
        apart = " and not apart" if self.kernels.tables and total in self.kernels.tables.sums else ""
        return f" if wanted[{self.places[total]}]{idle}{apart} else None"

    def room(self, total: Sum) -> str:
        """The statement that allocates a sum for each row."""
        access, storage = total.access, self.kernels.storage
        if access.tie is None:
            there = f" if wanted[{self.places[total]}] else None"
            return f"{total.name} = lse.new_zeros(1, q.shape[-2], 1, {math.prod(access.input.sizes)}){there}"
        entries = f", {math.prod(access.input.sizes)}" if access.form == "entry" else ""
        # a token at whose position there is no query keeps a gradient of 0, as do rows of no packed sequence; programs
        # that own keys add to the sums of rows
        added = access.tie == "q" and (access.row_axis.kind == "token" or total in self.at_once)
        gaps = added or storage.cut
        kind = f"lse.{'new_zeros' if access.form == 'entry' or gaps else 'new_empty'}"
        if storage.entries and kind == "lse.new_empty":
            kind = "(lse.new_empty if entries is None else lse.new_zeros)"
        rows = "q" if access.row_axis.kind == "query" else "k"
        count = f"{access.input.name}_sums.shape[-1]" if access.input.scan else self.kernels.rows_of(rows)
        return f"{total.name} = {kind}({storage.heads}, {count}{entries}){self._wanted(total)}"


def _with_room(made: dict[int, tuple[str, str]]) -> str:
    """Text that allocates the gradients that a kernel stores, even those that are not wanted."""
    if len(made) == 1:
        ((i, (grad, x)),) = made.items()
        return f"{grad} = {grad} if wanted[{i}] else runtime.empty_like({x})"
    pairs = ", ".join(f"({grad}, {x})" for grad, x in made.values())
    names = ", ".join(grad for grad, _ in made.values())
    return f"{names} = (x if x.numel() else runtime.empty_like(y) for x, y in ({pairs}))"
