"""How kernels for Hopper GPUs read parts of scores by distance, and what these learn there.

A step reads a float for each score at an address that differs between a thread's registers by constants, so that it
takes no other instruction.

If a part reads one entry of a table that learns, the backward kernel adds up dS by distance, and another kernel adds up
these sums by entry. If all distances of a tile read the same entry, as most tiles do that are far from the diagonal, a
key's sum is added at one of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ....expressions import calculus
from ....expressions.inputs import Input
from ....expressions.tree import SCORE, Node
from ....language.spec import Spec
from ... import by_distance
from ...access import Access
from ...by_distance import ByDistance, Part
from ...distance_reads import Partial
from ...kernel_terms import KernelTerms, Sum
from ...parameters import Kernel, Parameter
from ...shared_parameters import SharedParameters
from ...statements import Branch, Statement


@dataclass(frozen=True)
class SummedPart:
    """A part that reads one entry that learns: the entry's gradient is a sum of dS over distances, times a number."""

    name: str  # of its values
    partial: Partial
    slope: float
    found: str  # the host's call that finds these entries

    @property
    def total(self) -> Sum:
        """The gradient of the entries."""
        return Sum(self.partial.access)

    @property
    def sums(self) -> str:
        """The name of the sums of dS by distance."""
        return f"{self.name}_sums"

    def add_up(self, p: SharedParameters) -> Kernel:
        """The kernel that adds up these sums by entry."""
        entries, total = f"{self.partial.entries}_ptr", f"{self.total.name}_ptr"
        share = "sums" if self.slope == 1 else f"sums * {self.slope!r}"
        place = f"{total} + h * {math.prod(self.total.access.input.sizes)} + entry"
        body = (
            Statement("sums", f"tl.load({self.sums}_ptr + place, mask=distance < last, other=0.0)", shape="[BLOCK]"),
            Statement("entry", f"tl.load({entries} + place, mask=distance < last, other=0)", shape="[BLOCK]"),
            Statement("", f'tl.atomic_add({place}, {share}, mask=sums != 0, sem="relaxed")'),
        )
        parts = (
            Parameter(f"{self.sums}_ptr", "*fp32", self.sums),
            Parameter(entries, "*i32", self.partial.entries),
            Parameter(total, "*fp32", self.total.name, written=True),
        )
        doc = "Add the sums of a block of distances to the entries that a head reads there."
        return by_distance.kernel(p, f"add_up_{self.name}", parts, body, doc)


@dataclass(frozen=True)
class OnHopper:
    """A variant's parts by distance, in these kernels."""

    values: ByDistance

    @property
    def given(self) -> Spec:
        """The spec of which nothing learns."""
        return self.values.spec.given

    @cached_property
    def learned(self) -> tuple[SummedPart, ...]:
        """The parts whose sums of dS give complete gradients."""
        terms, spec = self.values.shared.analysis.by_query, self._learns(part.name for part in self.values.parts)
        if KernelTerms(spec, "k").outward:  # slopes of scores that are no numbers
            return ()
        found = [one for part in self.values.parts if (one := _summed(part, self.values, spec))]
        known = {one.partial.access for one in found}
        read = Counter(terms.access(n) for part in self.values.parts for n in {*part.node.walk()} if n.op == "input")

        def complete(given: Input) -> bool:
            """True if each of its entries is read by one part, whose gradient is known."""
            accesses = (access for access in terms.accesses if access.input == given)
            return all(access in known and read[access] == 1 for access in accesses)

        return tuple(one for one in found if complete(one.partial.access.input))

    @property
    def learning(self) -> Spec:
        """The spec of which only values by distance learn, those whose gradients kernels add up."""
        return self._learns(one.name for one in self.learned)

    def _learns(self, names: Iterable[str]) -> Spec:
        learn = {*names}
        inputs = (dataclasses.replace(given, grad=given.name in learn) for given in self.values.spec.inputs)
        return dataclasses.replace(self.values.spec, inputs=tuple(inputs))

    @property
    def totals(self) -> tuple[Sum, ...]:
        """The gradients that they compute."""
        return tuple(one.total for one in self.learned)

    @cached_property
    def launched(self) -> tuple[tuple[SummedPart, Kernel], ...]:
        """The parts that learn, with the kernels that add up their sums by entry."""
        return tuple((one, one.add_up(self.values.shared)) for one in self.learned)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """These kernels."""
        return tuple(kernel for _, kernel in self.launched)

    @property
    def host_functions(self) -> tuple[str, ...]:
        """The host's functions that launches of the backward pass call."""
        if not self.learned:
            return self.values.makers
        found = {f"find_{one.partial.access.name}" for one in self.learned}
        collect = (f"collect_{one.name}" for one in self.learned)
        return tuple(sorted((*collect, *found, *self.values.makers, "new_table")))


def _summed(part: Part, values: ByDistance, spec: Spec) -> SummedPart | None:
    """The part, if it reads a single entry that learns, times a number."""
    slopes = [calculus.constant_slope(term.score, part.read) for term in spec.scores]
    if len(part.partials) != 1 or any(slope is None for slope in slopes):
        return None
    (partial,) = part.partials
    found = math.fsum(slope for slope in slopes if slope)
    if partial.access.form != "entry" or isinstance(partial.slope, str) or not partial.slope * found:
        return None
    return SummedPart(part.name, partial, partial.slope * found, values.finding(partial.access))


def placed(terms: KernelTerms, ahead: str) -> tuple[Statement, ...]:
    """For each table, the place of the distance from position 0 of the other side to a worker's first row.

    `ahead` is text of the offset of that row from the first one of the program's tile, or "".
    """
    sign, first = ("+", "q_first") if terms.own == "q" else ("-", "k_start")
    offset = f" {sign} {first}" + (f" {sign} {ahead}" if ahead else "")
    rows = {access.name: f"tl.cast(h, tl.int64) * {access.name}_stride_head" for access in _read(terms)}
    return tuple(Statement(place_of(name), f"{row}{offset}") for name, row in rows.items())


def place_of(name: str) -> str:
    """The name of such a place."""
    return f"{name}_place"


def places(terms: KernelTerms) -> tuple[str, ...]:
    """The names of all such places."""
    return tuple(place_of(access.name) for access in _read(terms))


def loads(terms: KernelTerms) -> tuple[Statement, ...]:
    """The loads of a step: the values at the distances of a tile of scores."""
    keys_down = terms.own == "k"
    other, shape = ("+ q_first", "[BLOCK_N, BLOCK_M]") if keys_down else ("- k_start", "[BLOCK_M, BLOCK_N]")
    return tuple(
        Statement(
            access.name,
            f"at_distances({access.name}_ptr + {place_of(access.name)} {other}, score, KEYS_DOWN={keys_down})",
            shape=shape,
            serves=terms.readers(access),
        )
        for access in _read(terms)
    )


def _read(terms: KernelTerms) -> tuple[Access, ...]:
    return tuple(access for access in terms.accesses if access.form == "distance")


def added(parts: Iterable[SummedPart]) -> tuple[Branch, ...]:
    """The statements of a step that add dS to sums by distance."""
    return tuple(
        Branch(
            f"{one.sums}_ptr is not None",
            (
                Statement(
                    "",
                    f"add_at_distances({one.sums}_ptr, {one.partial.steps}_ptr, {place_of(one.name)} + q_first, exact)",
                ),
            ),
        )
        for one in parts
    )


def only_adds(score: Node, terms: KernelTerms) -> bool:
    """True if a score term does nothing but add, or subtract, values by distance."""
    if score == SCORE:
        return True
    if score.op not in ("+", "-") or not only_adds(score.args[0], terms):
        return False
    read = score.args[1]
    return read.op == "input" and terms.access(read).form == "distance"


def parameters(parts: Iterable[SummedPart]) -> tuple[Parameter, ...]:
    """The parameters of the kernel with such steps."""
    return tuple(
        part
        for one in parts
        for part in (
            Parameter(f"{one.sums}_ptr", "*fp32", one.sums, written=True),
            Parameter(f"{one.partial.steps}_ptr", "*i32", one.partial.steps),
        )
    )
