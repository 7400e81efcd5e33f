"""Parts of score terms that are evaluated once for every distance.

A part that depends on nothing but the head and the distance from key to query, such as a bias of buckets of distances,
has as many values as there are distances. A kernel evaluates them; a step then reads a float for each score.

For the gradients of inputs that a part reads, its derivatives are evaluated by distance as well, unless they are
numbers. If it reads entries of a table, their indices are stored by distance, too: most tiles that are far from the
diagonal have the same index for all scores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ..expressions import by_distance, calculus
from ..expressions.inputs import Axis, Input
from ..expressions.tree import Node
from ..language.spec import ScoreTerm, Spec
from ..printing import printers
from .access import Access
from .analysis import Analysis, analyse
from .distance_reads import DistanceReads, Partial, PartRead
from .kernel_terms import KernelTerms, Sum
from .parameters import Kernel, Parameter
from .shared_parameters import SharedParameters
from .statements import Block, Comment, Statement, code_names, names, needed, reads

BLOCK = 1024
"""How many distances a program takes."""


@dataclass(frozen=True)
class Values:
    """An expression that has a value for each head and distance."""

    name: str
    spec: Spec  # its only score term is the expression, of `distance`
    meaning: str

    @property
    def title(self) -> str:
        """The meaning at the beginning of a sentence."""
        return self.meaning[0].upper() + self.meaning[1:]

    def evaluate(self, p: SharedParameters) -> Kernel:
        """The kernel that evaluates the expression."""
        terms = KernelTerms(self.spec, "q")
        body: tuple[Block, ...] = (
            Statement("value", terms.text(self.spec.scores[0].score), shape="[BLOCK]"),
            Comment("only rows past the last query are further away, and their scores have to be finite"),
            Statement("value", "tl.where(distance < k_total, value, 0.0)", shape="[BLOCK]"),
            Statement("", f"tl.store({self.name}_ptr + place, value, mask=distance < last)"),
        )
        written = Parameter(f"{self.name}_ptr", "*fp32", self.name, written=True)
        doc = f"Store {self.meaning} at a block of distances, for a head."
        return kernel(p, f"fill_{self.name}", (written,), body, doc, terms)


@dataclass(frozen=True)
class Entries:
    """The entries of a table that learns, as an access reads them: their indices have a value for each distance."""

    partial: Partial
    spec: Spec  # its only score term is the access at `distance`

    @property
    def name(self) -> str:
        """Its name in generated code."""
        return self.partial.access.name

    def find(self, p: SharedParameters) -> Kernel:
        """The kernel that computes the indices."""
        terms, name = KernelTerms(self.spec, "q"), self.partial.entries
        index = terms.entry(terms.accesses[-1])
        body = (Statement("", f"tl.store({name}_ptr + place, {index}, mask=distance < last)"),)
        written = Parameter(f"{name}_ptr", "*i32", name, written=True)
        doc = f"Store the indices of {self.name} at a block of distances, for a head."
        return kernel(p, f"find_{name}", (written,), body, doc, terms)


@dataclass(frozen=True)
class Part:
    """A part of scores: what steps read in its place, and for gradients."""

    node: Node  # as scores contain it
    values: Values
    costly: bool  # whether each score looks up an entry: a logarithm costs portable kernels less than to load a value
    slopes: tuple[Values, ...] = ()  # its derivatives that are no numbers
    partials: tuple[Partial, ...] = ()

    @property
    def name(self) -> str:
        """Its name in generated code."""
        return self.values.name

    @property
    def read(self) -> Node:
        """What scores contain in its place."""
        return Node("input", (), self.name, "float")


@dataclass(frozen=True)
class ByDistance:
    """The spec of a variant with reads of such values in place of the parts."""

    spec: Spec
    parts: tuple[Part, ...]
    entries: tuple[Entries, ...]
    shared: SharedParameters  # of the variant, parts included

    @property
    def portable(self) -> ByDistance | None:
        """The variant with reads of the costly parts alone, as portable kernels have it."""
        return _of(self.shared, tuple(part for part in self.parts if part.costly))

    @cached_property
    def analysis(self) -> Analysis:
        """The analysis of that spec, for kernels that read the values through pointers."""
        return analyse(self.spec, self.reads)

    @property
    def reads(self) -> DistanceReads:
        """What such kernels read."""
        parts = tuple(PartRead(part.name, part.partials) for part in self.parts)
        return DistanceReads(parts, self.shared.analysis.by_query.accesses)

    @cached_property
    def evaluated(self) -> tuple[tuple[Values, Kernel], ...]:
        """All values, parts first, with the kernels that evaluate them."""
        slopes = (values for part in self.parts for values in part.slopes)
        return tuple((x, x.evaluate(self.shared)) for x in (*(part.values for part in self.parts), *slopes))

    @cached_property
    def found(self) -> tuple[tuple[Entries, Kernel], ...]:
        """Indices of entries, with the kernels that compute them."""
        return tuple((entries, entries.find(self.shared)) for entries in self.entries)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """These kernels."""
        return tuple(kernel for _, kernel in (*self.evaluated, *self.found))

    @property
    def called(self) -> frozenset[str]:
        """All names in them."""
        return code_names(*(kernel.blocks["body"] for kernel in self.kernels))

    @property
    def helpers(self) -> frozenset[str]:
        """The functions that they call, of those that expressions have in kernels."""
        nodes = [node for spec in self._specs for node in spec.nodes]
        nodes += [given.default for spec in self._specs for given in spec.inputs if given.default is not None]
        return frozenset(printers.triton_helpers(nodes)) | (self.called & {"within"})

    @property
    def margin(self) -> int:
        """How many distances tiles may reach beyond rows: a tile of 256, and one more where both sides may begin early.

        The 16 more are for rounding down to multiples of 16, for which kernels are compiled once.
        """
        pairs = any(given.grad and given.pairs for given in self.spec.inputs)
        return 16 + 256 * (1 + pairs)

    @property
    def inputs(self) -> frozenset[str]:
        """The names of what a call gives that the parts read."""
        return frozenset(name for spec in self._specs for name in _inputs(spec))

    @property
    def _specs(self) -> tuple[Spec, ...]:
        return (*(values.spec for values, _ in self.evaluated), *(entries.spec for entries in self.entries))

    # -- the host ------------------------------------------------------------------------------------------------

    @property
    def made(self) -> tuple[str, ...]:
        """The host's statements that evaluate the parts."""
        return tuple(f"{x.name} = {_call('make', x.name, kernel)}" for x, kernel in self.evaluated[: len(self.parts)])

    def made_back(self, totals: Iterable[Sum]) -> Iterator[tuple[Sum, str, str, str]]:
        """What some gradients need: names, the call that computes the values, and these if a gradient is not wanted."""
        for total in totals:
            mine = [x for part in self.parts for x in part.partials if x.access == total.access]
            for x in mine[:1]:
                if x.access.form == "entry":
                    yield total, f"{x.entries}, {x.steps}", self.finding(x.access), "(None, None)"
            for values, kernel in self.evaluated:
                if values.name in [x.slope for x in mine]:
                    yield total, values.name, _call("make", values.name, kernel), "None"

    def finding(self, access: Access) -> str:
        """The host's call that finds the entries that an access reads."""
        return next(_call("find", x.name, kernel) for x, kernel in self.found if x.partial.access == access)

    @property
    def makers(self) -> tuple[str, ...]:
        """The host's functions that evaluate the parts."""
        return tuple(f"make_{part.name}" for part in self.parts)

    @property
    def host_functions(self) -> tuple[str, ...]:
        """These, and those that compute what else gradients need."""
        found = (f"find_{entries.name}" for entries in self.entries)
        return (*found, *(f"make_{values.name}" for values, _ in self.evaluated))


def _call(verb: str, name: str, kernel: Kernel) -> str:
    return f"{verb}_{name}(cache, q, k{kernel.texts['takes']})"


def kernel(
    p: SharedParameters,
    name: str,
    parts: tuple[Parameter, ...],
    body: tuple[Block, ...],
    doc: str,
    terms: KernelTerms | None = None,
) -> Kernel:
    """A kernel whose programs take a block of distances of a head each, with what `terms` load for that."""
    own = SharedParameters(dataclasses.replace(p.analysis, spec=terms.spec)) if terms else p
    loads = needed((*own.analysis.key_head, *terms.loads("program")), reads(body)) if terms else ()
    first = parts[0].name.removesuffix("_ptr")
    found = (
        Statement("h", "tl.program_id(1)"),
        Statement("distance", "first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", shape="[BLOCK]"),
        Statement("place", f"tl.cast(h, tl.int64) * {first}_stride_head + distance"),
    )
    sizes = (Parameter("Hq", "i32", "q.shape[-2]"), Parameter("k_total", "i32", p.rows_of("k")))
    read = reads((*loads, *body))
    given = (
        *parts,
        *(part for part in (own.given(terms) if terms else ()) if part.name in read),
        *(size for size in sizes if size.name in read),
        Parameter(f"{first}_stride_head", "i32", f"runtime.stride({parts[0].given}, 0)"),
        Parameter("first", "i32", "first"),
        Parameter("last", "i32", "last"),
        *(own.constants("GROUP") if "GROUP" in read else ()),
        Parameter("BLOCK", "constexpr", str(BLOCK)),
    )
    named = names(*(part.given for part in given))
    taken = (f", {name}" for name in (_inputs(terms.spec) if terms else ()) if name in named)
    grid = f"(runtime.cdiv(last - first, {BLOCK}), q.shape[-2])"
    return Kernel(name, given, "", grid, None, {"body": (*found, *loads, *body)}, {"doc": doc, "takes": "".join(taken)})


def build(p: SharedParameters) -> ByDistance | None:
    """The parts of a variant that are worth it: those that read an entry of a table, or compute a smooth function."""
    terms, spec = p.analysis.by_query, p.spec

    def known(read: Node) -> bool:
        return terms.access(read).input.shared and not terms.access(read).input.scan

    def looks_up(n: Node) -> bool:
        return n.op == "input" and terms.access(n).form == "entry"

    found = dict.fromkeys(part for term in spec.scores for part in by_distance.parts(term.score, known))
    parts = [part for part in found if any(looks_up(n) or n.op in printers.SMOOTH for n in part.walk())]

    def costly(part: Node) -> bool:
        return any(looks_up(n) and terms.reach(n) == {"q", "k"} for n in part.walk())

    return _of(p, tuple(_part(terms, part, i, costly=costly(part)) for i, part in enumerate(parts)))


def _of(p: SharedParameters, parts: tuple[Part, ...]) -> ByDistance | None:
    """The variant with reads of these parts, if there are any."""
    if not parts:
        return None
    read = {part.node: part.read for part in parts}
    scores = tuple(dataclasses.replace(term, score=term.score.replaced(read.get)) for term in p.spec.scores)
    inputs = tuple(Input(part.name, (Axis("head"), Axis("distance"))) for part in parts)
    partials = {x.access: x for part in parts for x in part.partials if x.access.form == "entry"}
    entries = tuple(Entries(x, _alone(p.spec, _node(access))) for access, x in partials.items())
    return ByDistance(_reduced(dataclasses.replace(p.spec, scores=scores), inputs), parts, entries, p)


def _part(terms: KernelTerms, node: Node, number: int, *, costly: bool) -> Part:
    """A part with its derivatives with respect to inputs that learn."""
    many = str(number + 1) if number else ""
    name, slopes, partials = f"by_distance{many}", list[Values](), list[Partial]()
    learns = costly and terms.spec.algorithm.backward
    for read in dict.fromkeys(n for n in node.walk() if n.op == "input" and terms.access(n).input.grad and learns):
        access, slope = terms.access(read), calculus.simplify(calculus.derivative(node, read))
        always = calculus.constant_slope(node, read)
        if always is None:
            meaning = f"the derivative of {name} with respect to {access.name}"
            slopes.append(Values(f"{access.name}_slope{many}", _alone(terms.spec, slope), meaning))
        partials.append(Partial(access, slopes[-1].name if always is None else always))
    values = Values(name, _alone(terms.spec, node), "a part of scores")
    return Part(node, values, costly, tuple(slopes), tuple(partials))


def _node(access: Access) -> Node:
    """An access as expressions contain it."""
    return Node("input", access.index, access.input.name, access.input.dtype)


def _alone(spec: Spec, node: Node) -> Spec:
    """A spec whose only score term is an expression of distances."""
    term = ScoreTerm("", by_distance.at_distance(node))
    return _reduced(dataclasses.replace(spec, masks=(), scores=(term,)))


def _inputs(spec: Spec) -> tuple[str, ...]:
    return (*(option.keyword for option in spec.options), *(given.name for given in spec.inputs))


def _reduced(spec: Spec, more: tuple[Input, ...] = ()) -> Spec:
    """The spec with the inputs and options that its terms still read, and `more` inputs."""
    read = {str(n.value) for node in spec.nodes for n in node.walk() if n.op in ("input", "option")}
    read |= {number for given in spec.inputs if given.name in read for number in given.numbers}
    inputs = tuple(given for given in spec.inputs if given.name in read)
    options = tuple(option for option in spec.options if option.keyword in read)
    return dataclasses.replace(spec, inputs=(*inputs, *more), options=options)
