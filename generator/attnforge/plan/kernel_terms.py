"""The terms of a spec as one kernel prints them: masks, scores, and in backward kernels slopes and their sums."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from ..expressions import calculus, distances, sharing
from ..expressions.functions import FUNCTIONS
from ..expressions.inputs import Input
from ..expressions.tree import SCORE, Node
from ..printing import printers
from . import running_sums
from .access import TYPES, Access
from .conditions import as_bool
from .distance_reads import PartRead
from .kernel_inputs import KernelInputs
from .scale_hoisting import Factored, factored
from .statements import Place, Statement, label, serving
from .tiles import Weight

_ZEROS = Node("local", (), "tl.where(score == score, 0.0, 0.0)", "float")  # works for tiles with layouts, too


@dataclass(frozen=True)
class Sum:
    """The gradient of the values of an access, as a kernel sums it: over the keys of a row or the queries of a key."""

    access: Access

    @property
    def name(self) -> str:
        """Its name in kernels."""
        return f"{self.access.name}_sum"


@dataclass(frozen=True)
class Slope:
    """A factor of the score's gradient; `text` is None if it is 1."""

    text: str | None
    sign: Literal["+", "-"] = "+"
    thin: bool = False  # one value for several scores, which may be NaN or infinite where the mask hides one of them

    @property
    def product(self) -> str:
        """Text of the score's gradient times the factor, without the sign."""
        if self.text is None:
            return "ds"
        return f"tl.where(p != 0, ds * {self.text}, 0.0)" if self.thin else f"ds * {self.text}"


@dataclass(frozen=True)
class BackwardTerm:
    """A score term in a backward kernel: its slopes are computed before it replaces the score."""

    before: tuple[Statement, ...]  # named values, in order
    guarded: tuple[Statement, ...]  # zero slopes, one per score, that may be NaN or infinite if it is hidden
    value: Statement
    slope: Slope
    sums: tuple[tuple[Sum, Slope], ...]


class _Shared(NamedTuple):
    """A score term's value and slopes in terms of the parts that they share."""

    parts: list[tuple[str, Node]]  # the named parts, in order
    value: Node
    slopes: list[Node]  # with respect to the score, then to each wanted sum
    reaches: list[frozenset[str]]  # the sides along which each slope varies inside a tile
    wanted: tuple[Sum, ...]
    learning: tuple[PartRead, ...]  # the parts with sums of their own; their slopes are the last ones


@dataclass(frozen=True)
class KernelTerms(KernelInputs):
    """The terms of a spec as one kernel reads them; `alone` are the accesses whose gradients alone it computes, if any.

    It sums such a gradient for each score of a tile.
    """

    alone: tuple[Access, ...] = ()

    @property
    def keep(self) -> tuple[Statement, ...]:
        """The statements that decide whether a place is visible, without loads."""
        return self.visible(apart=False)

    def visible(self, *, apart: bool, near: str = "") -> tuple[Statement, ...]:
        """The statements of the masks, one for each; before them the distance of positions, if they read it.

        It costs an instruction for each score, which pays if several conditions read it, or with registers `apart`.
        A single comparison with a number needs none if `near` is text of what the compiler knows about each register.
        """
        keeps = self._in_distances if apart else [mask.keep for mask in self.spec.masks]
        plain = [self.beside_tiles(keep) if self.reach(keep) else as_bool(keep) for keep in keeps]
        own = [*map(distances.as_one, plain)]
        by: list[Place] = [("mask", i) for i, node in enumerate(own) for n in node.walk() if n == distances.DISTANCE]
        if len(by) < 2 - apart:
            own, by = plain, []
        assert distances.DISTANCE.definition
        made = self.text(distances.DISTANCE.definition)
        before: tuple[Statement, ...] = (Statement("distance", f"apart({made})" if apart else made),) if by else ()
        if near and len(own) == 1 and (only := distances.in_parts(own[0])):
            far = Statement("far", f"apart(near - ({made}))", label="one value per thread")
            own, before = [only], (Statement("near", near), far)
        conditions = (
            Statement("keep", self.text(keep), "&=", label(mask.label), serves=frozenset({("mask", i)}))
            for i, (keep, mask) in enumerate(zip(own, self.spec.masks, strict=True))
        )
        return (*serving(by, before), *conditions)

    @property
    def banded(self) -> bool:
        """True if masks only bound how far a key precedes a query: one comparison decides about a score."""
        return bool(self.spec.masks) and all(map(distances.bounds_one, self._in_distances))

    @property
    def _in_distances(self) -> list[Node]:
        """The conditions of the masks, with ends of documents as bounds of distances."""
        return [running_sums.by_distance(mask.keep, self.spec) for mask in self.spec.masks]

    @property
    def score(self) -> tuple[Statement, ...]:
        """The score terms' values, in order."""
        return tuple(
            Statement("score", self.text(self._value(node)), label=label(term.label), serves=frozenset({("score", i)}))
            for i, (node, term) in enumerate(zip(self.factored.scores, self.spec.scores, strict=True))
        )

    @cached_property
    def factored(self) -> Factored:
        """The score terms without factors that are better applied elsewhere; unchanged if sums need their slopes."""
        scores = tuple(term.score for term in self.spec.scores)
        learned = any(self.access(n).input.grad for score in scores for n in score.walk() if n.op == "input")
        learned = learned or any(part.partials for part in self.by_distance.parts)
        return Factored(scores) if learned else factored(scores)

    def _value(self, score: Node) -> Node:
        """A score term's value, one for each score even if the term does not contain the score."""
        value = self._in_floats(score)
        return value if any(n == SCORE for n in value.walk()) else Node("+", (_ZEROS, value))

    def _in_floats(self, node: Node) -> Node:
        """An expression for floats, with distances as floats."""
        return distances.as_floats(self.beside_tiles(node))

    @cached_property
    def learned(self) -> tuple[Sum, ...]:
        """The gradients that this backward kernel computes: those at keys if it owns keys, else all others."""
        if self.alone:
            return tuple(map(Sum, self.alone))
        accesses = [access for access in self.accesses if access.input.grad and access.form not in ("pair", "distance")]
        accesses += (partial.access for part in self.by_distance.parts for partial in part.partials)
        return tuple(Sum(access) for access in dict.fromkeys(accesses) if (access.tie == "k") == (self.own == "k"))

    @property
    def sums(self) -> tuple[Sum, ...]:
        """The gradients that it carries from step to step."""
        return tuple(s for s in self.learned if s.access.form != "entry" or s.access in self.alone)

    @property
    def tables(self) -> tuple[Sum, ...]:
        """The gradients that it accumulates in memory, entry by entry."""
        return tuple(s for s in self.learned if s not in self.sums)

    @property
    def _learning(self) -> tuple[PartRead, ...]:
        """The parts read by distance whose inputs' gradients this backward kernel computes."""
        return self.by_distance.parts if self.own == "q" and not self.alone else ()

    @property
    def tables_back(self) -> dict[str, str]:
        """What else it reads by distance for them: names, and types of pointers."""
        partials = (partial for part in self._learning for partial in part.partials)
        return {name: kind for partial in partials for name, kind in partial.tables.items()}

    @cached_property
    def _shared(self) -> tuple[_Shared, ...]:
        """The value and slopes of each score term in terms of their shared parts."""
        found = []
        for score in self.factored.scores:
            nodes = {n: self.access(n) for n in score.walk() if n.op == "input"}
            wanted = {n: Sum(access) for n, access in nodes.items() if Sum(access) in self.learned}
            learning = {n: p for n in nodes for p in self._learning if p.name == n.value and p.partials}
            slopes = [calculus.simplify(calculus.derivative(score, x)) for x in (SCORE, *wanted, *learning)]
            parts, roots = sharing.share([self._value(score), *map(self._in_floats, slopes)], "part")
            reaches, each = [self.reach(s) for s in slopes], (tuple(wanted.values()), tuple(learning.values()))
            found.append(_Shared(parts, roots[0], roots[1:], reaches, *each))
        return tuple(found)

    @cached_property
    def backward_terms(self) -> tuple[BackwardTerm, ...]:
        """The score terms with the slopes that this backward kernel needs."""
        taken = 0
        terms = []
        for i, shared in enumerate(self._shared):
            names = {old: f"part{taken + j}" for j, (old, _) in enumerate(shared.parts)}
            taken += len(shared.parts)
            renamed = functools.partial(_renamed, names)
            before = [Statement(names[old], self.text(node.replaced(renamed))) for old, node in shared.parts]
            named: list[Slope] = []
            guarded: list[Statement] = []
            for j, (node, reach) in enumerate(zip(shared.slopes, shared.reaches, strict=True)):
                slope = node.replaced(renamed)
                if slope.op == "num" and slope.value in (1, -1):
                    named.append(Slope(None, "+" if slope.value == 1 else "-"))
                elif slope.op == "neg" and slope.args[0] == Node("num", value=1.0):
                    named.append(Slope(None, "-"))
                else:
                    name = f"slope{i}" + (f"_{j}" if j else "")
                    before.append(Statement(name, self.text(slope)))
                    wild = bool(reach) and not _finite(slope)
                    named.append(Slope(name, thin=wild and reach != {"q", "k"}))
                    if wild and not named[-1].thin:
                        guarded.append(Statement(name, f"tl.where(keep, {name}, 0.0)"))
            value = Statement("score", self.text(shared.value.replaced(renamed)), serves=frozenset({("score", i)}))
            terms.append(
                BackwardTerm(
                    serving({("score", i)}, before),
                    serving({("score", i)}, guarded),
                    value,
                    named[0],
                    (
                        *zip(shared.wanted, named[1:], strict=False),
                        *self._in_parts(zip(shared.learning, named[1 + len(shared.wanted) :], strict=True)),
                    ),
                )
            )
        return tuple(terms)

    def _in_parts(self, slopes: Iterable[tuple[PartRead, Slope]]) -> Iterator[tuple[Sum, Slope]]:
        """The gradients of what parts read, with slopes, given the slope of the score with respect to each part."""
        for part, outer in slopes:
            for partial in part.partials:
                text, sign, inner = "", outer.sign, partial.slope
                if isinstance(inner, str):
                    text = part.load(inner, self.way)
                else:
                    text = "" if abs(inner) == 1 else repr(abs(inner))
                    sign = sign if inner > 0 else "+" if sign == "-" else "-"
                both = " * ".join(filter(None, (outer.text, text)))
                yield Sum(partial.access), Slope(both or None, sign, outer.thin or isinstance(inner, str))

    @property
    def inward(self) -> tuple[Statement, ...]:
        """A backward step's statements from the plain score to the final one, with slopes on the way."""
        found: list[Statement] = []
        for term, given in zip(self.backward_terms, self.spec.scores, strict=True):
            first, *others = (*term.before, term.value)
            found += [dataclasses.replace(first, heading=label(given.label)), *others]
        return tuple(found)

    @property
    def guarded(self) -> tuple[Statement, ...]:
        """The statements that zero slopes where the mask hides the score and they must not be used."""
        return tuple(statement for term in self.backward_terms for statement in term.guarded)

    @property
    def steep(self) -> bool:
        """True if some term has a slope of its own for each score."""
        return any(shared.reaches[0] == {"q", "k"} for shared in self._shared)

    @property
    def outward(self) -> tuple[Statement, ...]:
        """A backward step's statements from the final score's gradient, `ds`, to the plain one's."""
        found: list[Statement] = []
        for i, term in reversed([*enumerate(self.backward_terms)]):
            made = [self._added(total, slope) for total, slope in term.sums]
            if term.slope.text:
                made.append(Statement("ds", term.slope.product))
            elif term.slope.sign == "-":
                made.append(Statement("ds", "-ds"))
            found += serving({("score", i)}, made)
        return tuple(found)

    def _added(self, total: Sum, slope: Slope) -> Statement:
        """The statement that adds a step's share to a gradient."""
        access, share = total.access, slope.product
        sign: Literal["+=", "-="] = "+=" if slope.sign == "+" else "-="
        if access in self.alone:
            return Statement(total.name, share, sign, condition=self.wanted(total))
        if access.form != "entry":
            return Statement(total.name, f"tl.sum({share}, 1)", sign, condition=self.wanted(total))
        return self.added_by_entry(total, ("-" if slope.sign == "-" else "") + share)

    def added_by_entry(self, total: Sum, share: str) -> Statement:
        """The statement that adds up the values in `share`, one for each score of a tile, by entry."""
        access, count = total.access, math.prod(total.access.input.sizes)
        for part in self._learning:
            for entries, steps in ((x.entries, x.steps) for x in part.partials if x.access == access):
                first = (part.place(name, "q_first - k_start") for name in (entries, steps))
                call = f"add_by_entry_at({total.name}_ptr + slot * {count}, {', '.join(first)}, row < q_len, {share})"
                return Statement("", call, condition=self.wanted(total))
        entry = self.entry(access)
        if access.tie is None:
            call = f"add_by_entry({total.name}_ptr + slot * {count}, row < q_len, {entry}, {share})"
        else:
            inside = {"q": "row < q_len", "k": "k_pos < k_len"}[access.tie]
            call = f"add_by_row_and_entry({total.name}_ptr, {total.name}_row, {inside}, {entry}, {share}, {count})"
        return Statement("", call, condition=self.wanted(total))

    def wanted(self, total: Sum) -> str:
        """Text of whether a launch computes a gradient; "" if each does, as it is the kernel's only one."""
        return "" if self.alone == (total.access,) else f"{total.name}_ptr is not None"

    @property
    def added(self) -> tuple[Statement, ...]:
        """The statements that add up gradients of inputs."""
        return tuple(self._added(total, slope) for term in self.backward_terms for total, slope in term.sums)

    def idle(self, total: Sum) -> bool:
        """True if a row's sum is 0 without a gradient of the LSE: adding a constant to a row changes no weight."""
        # it differs from 0 by the rounding of out, and a running sum would add that up over all later rows
        if self.spec.sink or total.access.side != "q" or total.access.input.scan:
            return False
        terms = self.backward_terms
        after = [any(later.slope.text for later in terms[i + 1 :]) for i in range(len(terms))]
        found = zip(terms, after, strict=True)
        return not any(changed or slope.text for t, changed in found for s, slope in t.sums if s == total)

    def default(self, given: Input) -> tuple[Statement, ...]:
        """The statements that compute an input's default, finally as `value`, if the call leaves the input out."""
        assert given.default is not None
        parts, (value,) = sharing.share([given.default], "part")
        named = (Statement(name, self.text(node)) for name, node in parts)
        cast = Statement("value", f"tl.cast({self.text(value)}, {TYPES[given.dtype]})")
        return serving(self.readers(given), (*named, cast))

    @cached_property
    def weight(self) -> Weight:
        """The class of the variant by what its terms load and compute; tables of tiles are kept for each class."""
        rows = [access.input for access in self.accesses if access.form == "row"]
        floats = [given for given in rows if given.dtype == "float"]
        many = [access for access in self.accesses if access.form in ("pair", "entry")]
        of_blocks = not floats and all(access.block > 1 and access not in self.scored for access in many)
        if (many and not of_blocks) or not all(map(self.reachable, floats)):
            return "heavy"
        if self.spec.dropout:
            return "drawn"
        if floats:
            return "rows"
        if many:
            return "blocks" if all(access.block >= 128 for access in many) else "small_blocks"
        if rows:
            return "marks"
        if any(access.form == "distance" for access in self.accesses):
            return "tabled"
        functions = (n for score in self.factored.scores for n in score.walk() if n.op in printers.SMOOTH)
        of_scores = [n for n in functions if self.reach(n) == {"q", "k"}]
        if of_scores or any(term.slope.text for term in self.backward_terms):
            return "capped" if of_scores and all(map(_caps, of_scores)) else "sloped"
        return "plain" if self.spec.masks or self.spec.scores else "bare"

    @property
    def helpers(self) -> tuple[str, ...]:
        """The functions that the terms' text calls, slopes included."""
        nodes = [*map(self._value, self.factored.scores), *(mask.keep for mask in self.spec.masks)]
        nodes += [given.default for given in self.spec.inputs if given.default is not None]
        for shared in self._shared if self.spec.algorithm.backward else ():
            nodes += [*(node for _, node in shared.parts), shared.value, *shared.slopes]
        return (*(["moved"] if any(self.places()) else []), *printers.triton_helpers(nodes))


def _caps(node: Node) -> bool:
    """True if a function of scores has a faster version on Hopper GPUs, for arguments near 0."""
    return FUNCTIONS[node.op].hopper and any(n.op == "var" and n.value == "score" for n in node.walk())


def _finite(node: Node) -> bool:
    """True if a value is computed from integers by operations that keep it finite."""
    return all(
        n.op in _CLOSED or n.op == "num" or (not n.args and n.type == "int") or (n.definition and _finite(n.definition))
        for n in node.walk()
    )


_CLOSED = {"neg", "+", "-", "*"} | {name for name, function in FUNCTIONS.items() if function.kind == "choice"}


def _renamed(names: dict[str, str], node: Node) -> Node | None:
    """A part under its new name."""
    name = names.get(str(node.value)) if node.op == "local" else None
    return dataclasses.replace(node, value=name) if name else None
