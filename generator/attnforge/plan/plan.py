"""A spec -> the plan that templates print: what each kernel takes, loads, visits, adds, masks and differentiates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..expressions.inputs import Input
from ..language.spec import Spec
from . import arguments, loops, running_sums, statements, tiles
from .arguments import Argument
from .layout import reduced, scan_view
from .leaf import SIDES, Side
from .loops import Walk
from .names_in_code import in_code
from .parameters import Kernel
from .positions import ENDS_TOGETHER, Positions
from .score_terms import Sum, View
from .signatures import Signatures
from .storage import Storage
from .tile_states import TileStates


@dataclass(frozen=True)
class Reduction:
    """The gradient of an input on the host: from the kernels' sums to the input's own axes."""

    input: Input
    sums: tuple[Sum, ...]
    idle: tuple[Sum, ...]  # those that are 0 unless the LSE has a gradient
    text: str  # over `total`, the sums added up

    @property
    def total(self) -> str:
        """Text of all sums added up."""
        every, most = (" + ".join(s.name for s in self.sums if s not in left) for left in ((), self.idle))
        return f"{most} if dlse is None else {every}" if self.idle else every


@dataclass(frozen=True)
class Pass:
    """A backward kernel as the host launches it."""

    kernel: Kernel
    grid: str
    condition: str  # whether some gradient that it makes is wanted; "" if it runs in any case
    made: tuple[str, ...]  # statements that make its outputs
    partial: tuple[tuple[str, str], ...]  # sums with values of each program, and the statements' texts that make them


@dataclass(frozen=True)
class Plan:
    """All that templates know of a variant."""

    spec: Spec  # its inputs and options have their names in code
    arguments: tuple[Argument, ...]
    by_query: View  # the terms as kernels read them whose programs own queries
    by_key: View  # the terms as kernels read them whose programs own keys
    signatures: Signatures
    keys: Walk
    queries: Walk
    key_states: TileStates | None  # how programs that own queries skip tiles by what the call gives
    query_states: TileStates | None
    helpers: tuple[str, ...]
    tuned: tuple[tiles.Row, ...]  # of this variant alone
    tables: tiles.Tables

    @property
    def joined(self) -> bool:
        """Whether mixed and full tiles share a loop, the mask under a branch that the assembler has to live with."""
        return self.by_query.weight != "heavy"

    @property
    def vectors(self) -> bool:
        """Whether terms read inputs that differ from row to row."""
        return any(leaf.form == "row" for leaf in self.by_query.leaves)

    @property
    def pairs(self) -> bool:
        """Whether terms read inputs that differ from score to score."""
        return any(leaf.form == "pair" for leaf in self.by_query.leaves)

    @property
    def entries(self) -> bool:
        """Whether terms look up entries."""
        return any(leaf.form == "entry" for leaf in self.by_query.leaves)

    @property
    def scale_log2(self) -> str:
        """What turns a kernel's score into log2 units: with terms in between, the scale is applied before them."""
        if not self.spec.scores:
            return "scale_log2"
        outer = self.by_query.factored.outer
        return "LOG2E" if outer == 1 else f"({outer!r} * LOG2E)"

    @property
    def scaling(self) -> str:
        """What a step does to a product of queries and keys at once: without terms, the scale waits for the units."""
        op, number = self.by_query.factored.inner
        return "" if not self.spec.scores else " * scale" if number == 1 else f" * (scale {op} {number!r})"

    @property
    def slope(self) -> str:
        """What the gradient of the terms' score is multiplied by in the end."""
        both = self.by_query.factored.both
        return "scale" if both == 1 else f"(scale * {both!r})"

    @cached_property
    def learned(self) -> tuple[Reduction, ...]:
        """The inputs that get a gradient."""
        sums = (*self.by_query.learned, *self.by_key.learned, *(Sum(pair.leaf) for pair in self.signatures.pairs))
        found = []
        for given in self.spec.inputs:
            if given.grad:
                mine = tuple(s for s in sums if s.leaf.input == given)
                idle = tuple(s for s in mine if self.by_query.idle(s))
                found.append(Reduction(given, mine, idle if len(idle) < len(mine) else (), reduced(given, self.spec)))
        return tuple(found)

    @property
    def watched(self) -> tuple[Walk, ...]:
        """The walks that suites hold against the mask by themselves: those that lengths and numbers tell all of."""
        if self.keys.whole or (self.key_states and self.key_states.ranged):
            return ()
        walks = {"k": self.keys, "q": self.queries}
        rendered = (walk for side, walk in walks.items() if side in self.spec.algorithm.walks)
        return tuple(walk for walk in rendered if walk.plain is not None)

    @property
    def spanned(self) -> bool:
        """Whether a walk has several spans of tiles."""
        return any(len(walk.ends) > 1 for walk in (self.keys, self.queries))

    @property
    def shared_range(self) -> bool:
        """Whether all heads of a group walk along the same queries, a matter of nothing that differs between them."""
        by_head = {"h", *statements.targets(self.by_key.loads("head"))}
        if by_head & statements.reads(self.by_key.narrowed):
            return False
        if self.query_states:
            return self.query_states.ranged and not self.query_states.per_head
        return len(self.queries.ends) == 1 and not by_head & set(self.queries.parameters)

    # -- the host ------------------------------------------------------------------------------------------------

    @property
    def tensors(self) -> tuple[str, ...]:
        """What the backward pass needs of the operator's tensors."""
        return ("q", "k", "v", *self.storage.cuts, *(a.code for a in self.arguments if a.kind == "tensor"))

    @property
    def numbers(self) -> tuple[str, ...]:
        """What the backward pass needs of the operator's numbers."""
        return (*self.storage.limits, *(a.code for a in self.arguments if a.kind == "scalar"), "scale")

    @property
    def prepared(self) -> tuple[str, ...]:
        """What the forward pass works out of its arguments before it attends, beside turned queries and keys."""
        return (*self.signatures.sums, *(x.ranges for x in self.signatures.ranged))

    @property
    def kept(self) -> tuple[str, ...]:
        """What the forward pass leaves to the backward pass beside out and LSE."""
        turned = ("q_turned", "k_turned") if self.spec.rope else ()
        return (*turned, *self.prepared) if self.spec.algorithm.backward else ()

    @property
    def seen(self) -> tuple[str, ...]:
        """What tells a call from others as far as launches go: tensors by their shapes, numbers by their values."""
        return (*self.tensors, *self.storage.limits, *(("_seed_kind(seed)",) if self.spec.dropout else ()))

    @property
    def floats(self) -> tuple[Argument, ...]:
        """The tensors beside q, k and v that a caller could want a gradient of."""
        return tuple(a for a in self.arguments if (a.kind, a.dtype) == ("tensor", "float"))

    @property
    def renamed(self) -> bool:
        """Whether generated code has names of its own for some arguments."""
        return any(a.renamed for a in self.arguments)

    @property
    def learned_names(self) -> tuple[str, ...]:
        """The learned inputs, and the sinks where there are any."""
        return (*(r.input.name for r in self.learned), *(("sinks",) if self.spec.sink else ()))

    @property
    def learned_places(self) -> tuple[int, ...]:
        """Where q, k, v and what is learned besides stand among the operator's arguments."""
        names = [a.code for a in self.arguments]
        first = len(("q", "k", "v", *self.storage.cuts, *self.storage.limits))
        return (0, 1, 2, *(first + names.index(name) for name in self.learned_names))

    def reset(self, given: Input) -> str:
        """Text of the largest value of a running sum's input that begins a document."""
        value = running_sums.largest_reset(self.spec, given)
        return repr(value) if math.isfinite(value) else 'float("-inf")'

    def scan_texts(self, given: Input) -> tuple[str, str]:
        """How the host hands an input to the scan, and what it drops of the result."""
        return scan_view(given, self.spec)

    @property
    def grid(self) -> str:
        """Text of the forward pass's grid."""
        heads = f"{self.storage.sequences} * q.shape[-2]"
        return f"({heads},)" if self.spec.algorithm.whole_head else self._groups(heads, "q", "k, v")

    def _groups(self, heads: str, own: Side, walked: str) -> str:
        """Text of a grid of heads and of tiles of one side, whose programs walk along tensors."""
        return f"_in_groups({heads}, {self.signatures.tiles(own)}, {walked})"

    @property
    def buffers(self) -> tuple[str, ...]:
        """The statements that make what the forward pass keeps in memory from step to step."""
        if not self.spec.algorithm.whole_head:
            return ()
        acc = "acc = lse.new_zeros(*lse.shape, v.shape[-1])"
        if not self.spec.sink:
            return acc, 'm = lse.new_full(lse.shape, float("-inf"))', "l = lse.new_zeros(lse.shape)"
        # the sink is what every row has seen at first
        first = "m = lse.new_empty(lse.shape).copy_((sinks.float() * LOG2E)[:, None])"
        return acc, first, 'l = (m > float("-inf")).float()'

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        """The parts of the backward pass."""
        by_columns = self._groups(f"{self.storage.sequences} * k.shape[-2]", "k", "q, dout")
        return (
            self._pass(self.signatures.dq, self.by_query, {0: ("dq", "q")}, self.grid),
            self._pass(self.signatures.dkv, self.by_key, {1: ("dk", "k"), 2: ("dv", "v")}, by_columns),
            *(
                self._pass(
                    pair.kernel, pair.view, {},
                    f"({pair.batches} * {pair.heads}, {self.signatures.tiles('q')}, {self.signatures.tiles('k')})",
                )
                for pair in self.signatures.pairs
            ),
        )  # fmt: skip

    def _count(self, x: str) -> str:
        """Text of how many rows a tensor has."""
        return f"{x}.shape[{self.storage.outer.index('token')}]"

    @property
    def positions(self) -> Positions:
        """Which positions rows have."""
        return ENDS_TOGETHER

    @property
    def storage(self) -> Storage:
        """How rows stand in the tensors of a call."""
        return self.signatures.storage

    def _pass(self, kernel: Kernel, view: View, made: dict[int, tuple[str, str]], grid: str) -> Pass:
        places = {s: 3 + i for i, r in enumerate(self.learned) for s in r.sums}
        idle = [s for r in self.learned for s in r.idle]
        wanted = [*made, *dict.fromkeys(places[s] for s in view.learned)]
        lines = [f"{grad} = {grad} if wanted[{i}] else _like({x})" for i, (grad, x) in made.items()]
        partial: list[tuple[str, str]] = []
        for s in view.learned:
            form, tie = s.leaf.form, s.leaf.tie
            only = f" if wanted[{places[s]}]{' and dlse is not None' if s in idle else ''} else None"
            entries = f", {math.prod(s.leaf.input.sizes)}" if form == "entry" else ""
            if form == "pair":
                pair = next(p for p in self.signatures.pairs if p.leaf == s.leaf)
                lines.append(f"{s.name} = lse.new_empty({pair.batches}, {pair.heads}, q.shape[1], k.shape[1])")
            elif tie is None:
                shape = f"{self.storage.sequences}, q.shape[-2], {self.signatures.tiles('q')}{entries}"
                partial.append((s.name, f"lse.new_zeros({shape}){only}"))
            else:
                # a token that no query stands at keeps a gradient of 0, as does what no packed sequence has
                gaps = (tie == "q" and s.leaf.row_axis.kind == "token") or self.storage.cut
                kind = "zeros" if form == "entry" or gaps else "empty"
                rows = "q" if s.leaf.row_axis.kind == "query" else "k"
                count = f"{s.leaf.input.name}_sums.shape[-1]" if s.leaf.input.scan else self._count(rows)
                lines.append(f"{s.name} = lse.new_{kind}({self.storage.heads}, {count}{entries}){only}")
        lines += [f"{name} = None" for name, _ in partial]
        # the first one makes delta, which the others read
        condition = "" if kernel is self.signatures.dq else " or ".join(f"wanted[{i}]" for i in wanted)
        return Pass(kernel, grid, condition, tuple(lines), tuple(partial))


def build(spec: Spec) -> Plan:
    """Works out all that the templates print."""
    taken, spec = arguments.build(spec), in_code(spec)
    by_query = View(running_sums.in_kernels(spec, "q"), "q")
    by_key = View(running_sums.in_kernels(spec, "k"), "k", spec.algorithm.whole_head)
    signatures = Signatures(spec, by_query, by_key)
    views = (by_query, by_key, *(pair.view for pair in signatures.pairs))
    key_states, query_states = (found if (found := TileStates(spec, side)).any else None for side in SIDES)
    helpers = {name for view in views for name in view.helpers} | set(loops.helpers(spec))
    helpers |= {name for states in (key_states, query_states) if states for name in states.helpers}
    tuned = tiles.tuned(spec.path)
    given = tiles.tables(by_query.weight, spec.packed, spec.algorithm.name).tuned(tuned)

    def also(table: tiles.Table) -> tiles.Table:
        kept = table if spec.algorithm.backward else {"forward": table["forward"]}
        return kept | {pair.kernel.name: table["backward_dkv"] for pair in signatures.pairs}

    return Plan(
        spec,
        taken,
        by_query,
        by_key,
        signatures,
        loops.build(spec, "k", told=key_states is not None),
        loops.build(spec, "q", told=query_states is not None),
        key_states,
        query_states,
        tuple(sorted(helpers)),
        tuned,
        tiles.Tables({arch: also(table) for arch, table in given.half.items()}, also(given.single)),
    )
