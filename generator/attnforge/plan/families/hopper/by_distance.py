"""Parts of score terms that are evaluated once for every distance, in kernels for Hopper GPUs.

A part that depends on nothing but the head and the distance from key to query, such as a bias of buckets of distances,
has as many values as there are distances. A kernel evaluates them; a step then reads a float for each score, at an
address that differs between a thread's registers by constants, so that it takes no other instruction.

If such a part reads an entry of a table that learns, the backward kernel adds up dS by distance, and another kernel
adds up these sums by entry. If all distances of a tile read the same entry, as most tiles do that are far from the
diagonal, a key's sum is added at one of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ....expressions import by_distance, calculus
from ....expressions.inputs import Axis, Input
from ....expressions.tree import SCORE, Node
from ....language.spec import ScoreTerm, Spec
from ....printing import printers
from ...access import Access
from ...kernel_terms import KernelTerms, Sum
from ...parameters import Kernel, Parameter
from ...shared_parameters import SharedParameters
from ...statements import Block, Branch, Comment, Statement, names, needed, reads

BLOCK = 1024
"""How many distances a program evaluates."""


@dataclass(frozen=True)
class Learned:
    """The gradient of the table that a part reads: its sum, and the number by which sums of dS are multiplied."""

    total: Sum
    slope: float


@dataclass(frozen=True)
class Table:
    """The values of a part: what steps read in its place, and how they are computed."""

    input: Input
    spec: Spec  # its only score term is the part, as an expression of `distance`
    learned: Learned | None = None

    @property
    def name(self) -> str:
        """Its name in generated code."""
        return self.input.name

    @property
    def sums(self) -> str:
        """The name of the sums of dS by distance."""
        return f"{self.name}_sums"

    @property
    def steps(self) -> str:
        """The name of the numbers of changes of the entry that is read, up to each distance."""
        return f"{self.name}_steps"

    @property
    def entries(self) -> str:
        """The name of the index of the entry that is read, by distance."""
        return f"{self.name}_entries"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of what a call gives that the part reads."""
        return (*(option.keyword for option in self.spec.options), *(given.name for given in self.spec.inputs))

    @cached_property
    def _terms(self) -> KernelTerms:
        return KernelTerms(self.spec, "q")

    @property
    def _entry(self) -> str:
        """Text of the index of the entry that learns."""
        (access,) = (access for access in self._terms.accesses if access.input.grad)
        return self._terms.entry(access)

    def fill(self, p: SharedParameters) -> Kernel:
        """The kernel that evaluates the part."""
        body: tuple[Block, ...] = (
            Statement("value", self._terms.text(self.spec.scores[0].score), shape="[BLOCK]"),
            Comment("only rows past the last query are further away, and their scores have to be finite"),
            Statement("value", "tl.where(distance < k_total, value, 0.0)", shape="[BLOCK]"),
            Statement("", f"tl.store({self.name}_ptr + place, value, mask=distance < last)"),
        )
        written = [Parameter(f"{self.name}_ptr", "*fp32", self.name, written=True)]
        if self.learned:
            written.append(Parameter(f"{self.entries}_ptr", "*i32", self.entries, written=True))
            noted = Statement("", f"tl.store({self.entries}_ptr + place, {self._entry}, mask=distance < last)")
            body = (*body, Branch(f"{self.entries}_ptr is not None", (noted,)))
        doc = "Store the values of a block of distances for a head."
        return self._kernel(p, f"fill_{self.name}", written, body, doc)

    def add_up(self, p: SharedParameters) -> Kernel:
        """The kernel that adds up the sums of dS by entry."""
        assert self.learned
        total, slope = self.learned.total, self.learned.slope
        share = "sums" if slope == 1 else f"sums * {slope!r}"
        place = f"{total.name}_ptr + h * {math.prod(total.access.input.sizes)} + {self._entry}"
        body = (
            Statement("sums", f"tl.load({self.sums}_ptr + place, mask=distance < last, other=0.0)", shape="[BLOCK]"),
            Statement("", f'tl.atomic_add({place}, {share}, mask=sums != 0, sem="relaxed")'),
        )
        parts = (
            Parameter(f"{self.sums}_ptr", "*fp32", self.sums),
            Parameter(f"{total.name}_ptr", "*fp32", total.name, written=True),
        )
        doc = "Add the sums of a block of distances to the entries that a head reads there."
        return self._kernel(p, f"add_up_{self.name}", parts, body, doc)

    def _kernel(
        self, p: SharedParameters, name: str, parts: Sequence[Parameter], body: Iterable[Block], doc: str
    ) -> Kernel:
        body, terms = tuple(body), self._terms
        own = SharedParameters(dataclasses.replace(p.analysis, spec=self.spec))
        loads = needed((*own.analysis.key_head, *terms.loads("program")), reads(body))
        row = f"tl.cast(h, tl.int64) * {self.name}_stride_head"
        found = (
            Statement("h", "tl.program_id(1)"),
            Statement("distance", "first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", shape="[BLOCK]"),
            Statement("place", f"{row} + distance"),
        )
        sizes = (Parameter("Hq", "i32", "q.shape[-2]"), Parameter("k_total", "i32", p.rows_of("k")))
        read = reads((*loads, *body))
        given = (
            *parts,
            *(part for part in own.given(terms) if part.name in read),
            *(size for size in sizes if size.name in read),
            Parameter(f"{self.name}_stride_head", "i32", f"runtime.stride({parts[0].given}, 0)"),
            Parameter("first", "i32", "first"),
            Parameter("last", "i32", "last"),
            *(own.constants("GROUP") if "GROUP" in read else ()),
            Parameter("BLOCK", "constexpr", str(BLOCK)),
        )
        named = names(*(part.given for part in given))
        grid = f"(runtime.cdiv(last - first, {BLOCK}), q.shape[-2])"
        taken = ", ".join(name for name in self.inputs if name in named)
        return Kernel(name, given, "", grid, None, {"body": (*found, *loads, *body)}, {"doc": doc, "takes": taken})


@dataclass(frozen=True)
class ByDistance:
    """The spec of a variant with reads of such values in place of the parts."""

    spec: Spec
    tables: tuple[Table, ...]
    shared: SharedParameters

    @cached_property
    def launched(self) -> tuple[tuple[Table, Kernel, Kernel | None], ...]:
        """Each table with the kernel that evaluates it, and that of its gradient, if there is one."""
        p = self.shared
        return tuple((table, table.fill(p), table.add_up(p) if table.learned else None) for table in self.tables)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """These kernels."""
        return tuple(kernel for _, *both in self.launched for kernel in both if kernel)

    @property
    def learned(self) -> tuple[Table, ...]:
        """The tables whose gradients kernels add up."""
        return tuple(table for table in self.tables if table.learned)

    @property
    def learning(self) -> Spec:
        """The spec of which only tables learn whose gradients kernels add up."""
        mine = {table.name for table in self.learned}
        inputs = (dataclasses.replace(given, grad=given.name in mine) for given in self.spec.inputs)
        return dataclasses.replace(self.spec, inputs=tuple(inputs))

    @property
    def totals(self) -> tuple[Sum, ...]:
        """The gradients that they compute."""
        return tuple(table.learned.total for table in self.tables if table.learned)

    @property
    def makers(self) -> tuple[str, ...]:
        """The host's functions that evaluate the parts."""
        return tuple(f"make_{table.name}" for table in self.tables)

    @property
    def host_functions(self) -> tuple[str, ...]:
        """These, and those that add up what tables learn."""
        return (*(f"collect_{table.name}" for table in self.learned), *self.makers)

    @property
    def helpers(self) -> tuple[str, ...]:
        """The functions that the parts call."""
        return printers.triton_helpers(table.spec.scores[0].score for table in self.tables)

    @property
    def inputs(self) -> frozenset[str]:
        """The names of what a call gives that the parts read."""
        return frozenset(name for table in self.tables for name in table.inputs)


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


def added(tables: Iterable[Table]) -> tuple[Block, ...]:
    """The statements of a step that add dS to sums by distance."""
    return tuple(
        Branch(
            f"{table.sums}_ptr is not None",
            (
                Statement(
                    "",
                    f"add_at_distances({table.sums}_ptr, {table.steps}_ptr, {place_of(table.name)} + q_first, exact)",
                ),
            ),
        )
        for table in tables
    )


def only_adds(score: Node, terms: KernelTerms) -> bool:
    """True if a score term does nothing but add, or subtract, values by distance."""
    if score == SCORE:
        return True
    if score.op not in ("+", "-") or not only_adds(score.args[0], terms):
        return False
    read = score.args[1]
    return read.op == "input" and terms.access(read).form == "distance"


def parameters(tables: Iterable[Table]) -> tuple[Parameter, ...]:
    """The parameters of the kernel with such steps."""
    return tuple(
        part
        for table in tables
        for part in (
            Parameter(f"{table.sums}_ptr", "*fp32", table.sums, written=True),
            Parameter(f"{table.steps}_ptr", "*i32", table.steps),
        )
    )


def build(p: SharedParameters) -> ByDistance | None:
    """The parts of a variant that are worth it: those that read an entry of a table, or compute a smooth function."""
    terms, spec = p.analysis.by_query, p.spec

    def known(read: Node) -> bool:
        return terms.access(read).input.shared and not terms.access(read).input.scan

    def worthwhile(part: Node) -> bool:
        read = (terms.access(n).form for n in part.walk() if n.op == "input")
        return "entry" in read or any(n.op in printers.SMOOTH for n in part.walk())

    found = dict.fromkeys(
        part for term in spec.scores for part in by_distance.parts(term.score, known) if worthwhile(part)
    )
    if not found:
        return None
    named = {part: "by_distance" + (str(i + 1) if i else "") for i, part in enumerate(found)}
    made = {part: Node("input", (), name, "float") for part, name in named.items()}
    scores = tuple(dataclasses.replace(term, score=_replaced(term.score, made)) for term in spec.scores)
    inputs = {part: Input(name, (Axis("head"), Axis("distance")), grad=True) for part, name in named.items()}
    whole = _reduced(dataclasses.replace(spec, scores=scores), tuple(inputs.values()))
    sloped = bool(KernelTerms(whole, "k").outward)
    learned = {
        part: None
        if sloped
        else _learned(terms, part, [calculus.constant_slope(score.score, made[part]) for score in scores])
        for part in found
    }
    complete = _complete(terms, found, learned.values())
    tables = []
    for part, given in inputs.items():
        alone = ScoreTerm(given.name, by_distance.at_distance(part))
        own = _reduced(dataclasses.replace(spec, masks=(), scores=(alone,)))
        mine = learned[part]
        tables.append(Table(given, own, mine if mine and mine.total.access.input in complete else None))
    return ByDistance(whole, tuple(tables), p)


def _complete(terms: KernelTerms, parts: Iterable[Node], learned: Iterable[Learned | None]) -> frozenset[Input]:
    """The inputs whose gradients are complete: each of their entries is read by one part, whose gradient is known."""
    read = Counter(terms.access(n) for part in parts for n in {*part.walk()} if n.op == "input")
    known = {one.total.access for one in learned if one}
    reads = {given: [access for access in terms.accesses if access.input == given] for given in terms.spec.inputs}
    return frozenset(given for given, all_of in reads.items() if all(x in known and read[x] == 1 for x in all_of))


def _learned(terms: KernelTerms, part: Node, slopes: list[float | None]) -> Learned | None:
    """The gradient of the table that a part reads, if it reads a single entry that learns, times a number."""
    read = dict.fromkeys(n for n in part.walk() if n.op == "input" and terms.access(n).input.grad)
    if len(read) != 1 or any(slope is None for slope in slopes):
        return None
    (entry,) = read
    access, slope = terms.access(entry), calculus.constant_slope(part, entry)
    found = math.fsum(s for s in slopes if s)
    return Learned(Sum(access), slope * found) if access.form == "entry" and slope and found else None


def _replaced(node: Node, made: dict[Node, Node]) -> Node:
    if node in made:
        return made[node]
    return dataclasses.replace(node, args=tuple(_replaced(arg, made) for arg in node.args))


def _reduced(spec: Spec, more: tuple[Input, ...] = ()) -> Spec:
    """The spec with the inputs and options that its terms still read, and `more` inputs."""
    read = {str(n.value) for node in spec.nodes for n in node.walk() if n.op in ("input", "option")}
    read |= {number for given in spec.inputs if given.name in read for number in given.numbers}
    inputs = tuple(given for given in spec.inputs if given.name in read)
    options = tuple(option for option in spec.options if option.keyword in read)
    return dataclasses.replace(spec, inputs=(*inputs, *more), options=options)
