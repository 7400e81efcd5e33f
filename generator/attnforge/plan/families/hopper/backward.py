"""The backward pass for Hopper GPUs in one kernel: dK and dV of a program's keys, and their share of dQ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from ... import programs
from ...analysis import IN_LOG2
from ...loops import Loops
from ...parameters import Kernel, Parameter, Step
from ...statements import Block, Bundle, Call, Comment, Loop, Statement, names, needed, reads
from ..partition import Role, numbers_first, partition
from . import by_distance, copies, held_values, tile_order
from .additions import LOG2
from .frame import Frame
from .query_walk import QueryWalk
from .tile_order import KeyOrder
from .weights import Weights

_ORDER = ("items", "tiles", "group", "grouped", "joined")  # of tiles: runtime.py derives it from a grid
_FIXED = ("BLOCK_M", "BLOCK_N", "STAGES")
_SHARED_OUT = ("q_len", "exchange", "dq_sum_desc", "taken_ptr", "WORKERS")  # for writing a share of dQ to memory


@dataclass(frozen=True)
class Backward(Weights):
    """The backward pass of a variant."""

    stores_pairs: bool = False  # whether dS is stored as the gradient of values of pairs

    @property
    def cut(self) -> bool:
        """True if a tile may reach into the next sequence."""
        return self.shared.storage.cut

    @property
    def launched(self) -> tuple[Kernel, ...]:
        """All kernels in the order in which they run, with the parameters that the host passes."""
        before, *after = self.frame.kernels
        told = (q for q in self.parts if q.name not in (*_ORDER, "K_STAGES"))
        axis = Parameter("TILE_AXIS", "constexpr", self.order.axis)
        slots = (Parameter("balance", "constexpr", '"slots"'),) if self.cut else ()
        turns = (Parameter("turns_to", "constexpr", "0"),) if self.pairs else self.sums.told(self.parts)
        return (before, dataclasses.replace(self.kernel, parts=(*told, axis, *slots, *turns)), *after)

    @property
    def turns_to(self) -> int | None:
        """Up to how many queries programs take tiles of keys in turns; None: whatever their number.

        Values of pairs take the memory of a second stage of keys.
        """
        return 0 if self.pairs else self.sums.turns_to(self.parts)

    @cached_property
    def order(self) -> KeyOrder:
        """The order in which programs take tiles of keys."""
        return tile_order.of_keys(self.shared.analysis)

    @cached_property
    def frame(self) -> Frame:
        """The kernels that run before and after the one that multiplies."""
        return Frame(self.shared)

    @cached_property
    def parts(self) -> tuple[Parameter, ...]:
        """The kernel's parameters."""
        p, terms = self.shared, self.terms
        return (
            *copies.sources(p, "q_desc", "k_desc", "v_desc", "dout_desc"),
            self._sums,
            Parameter("lse_ptr", "*fp32", "lse"),
            Parameter("delta_ptr", "*fp32", "delta"),
            Parameter("dk_ptr", "*T", "dk", written=True),
            Parameter("dv_ptr", "*T", "dv", written=True),
            Parameter("taken_ptr", "*i32", "taken", written=True),
            *p.sizes(),
            *p.storage.aligned(),
            *p.summed(terms),
            # Gluon reads values of rows through pointers, whatever their alignment
            *(dataclasses.replace(q, condition="") for q in self.pairs.parameters(p.given(terms))),
            *self._of_pairs,
            *(Parameter(f"{s.name}_ptr", "*fp32", s.name, written=True) for s in self.sums.all),
            *by_distance.parameters(self.tables),
            *p.skipped("k"),
            *p.dropped(),
            *(Parameter(name, "i32", name) for name in _ORDER),
            *p.constants("GROUP", "D", "DV", "BLOCK_M", "BLOCK_N", "BLOCK_D", "BLOCK_DV", "STAGES", "K_STAGES"),
        )

    @property
    def _of_pairs(self) -> tuple[Parameter, ...]:
        """The parameter with which dS is stored as the gradient of values of pairs."""
        return (self.pairs.gradient,) if self.stores_pairs else ()

    @property
    def _sums(self) -> Parameter:
        """The accumulator of dQ."""
        return Parameter("dq_sum_desc", "fragments", "dq_sum", written=True)

    @cached_property
    def step(self) -> Step:
        """The function that handles one tile of queries."""
        results = ("at", "dk", "dv", *self.sums.carried)
        start = self._start((*self.sums.step, *self._dropping["drawn"]))
        own = (*results, "keys_of", "v_tile", *start, "exchange", "queries")
        constants = ("BLOCK_M", "BLOCK_N", "BLOCK_D", "STAGES", *self.pairs.constants, "SCORES", "OUT", "WORKER")
        return Step("accumulate", results, own, self._given(own), constants, False, self._masks_all)

    def _loops(self, step: Callable[[str, str], Call]) -> Loops:
        """The loops over tiles of queries, with one call per tile."""
        a = self.shared.analysis
        # mixed and full tiles share a loop, which takes fewer registers than two. Given two consecutive loops, the
        # assembler of CUDA 12.8 may compute parts of tile addresses only before the first one: if that loop has no
        # tile, the second one reads registers that nothing has set. If only keys past the last one have to be masked,
        # a program runs one of two loops, as a branch in the middle of a step costs more
        return Loops(
            a.queries,
            a.query_states,
            step,
            joined=True,
            tails=False,
            narrowed=self.terms.narrowed,
            full_if="k_start + BLOCK_N <= k_len",
            full_why="the score of a key behind the last one is 0, which may have an infinite weight",
            alike=not a.spec.masks and not a.spec.scores,
            masked=self._masks_all,
            known=a.shared_range,
        )

    @cached_property
    def walk(self) -> QueryWalk:
        """The walk of a worker, with a range of its own if positions alone determine which queries see its keys.

        With terms that change scores, which take registers, that was measured to lose more often than to gain.
        """
        a = self.shared.analysis
        loops = self._loops(self.step.call)
        own = loops.by_place and a.shared_range and a.spec.grouped and not a.spec.scores and not self.sums.all
        return QueryWalk(loops, own)

    @property
    def _stage(self) -> tuple[Block, ...]:
        """The statements that compute a step's stage and phase bit; which form pays off was measured."""
        if self.shared.analysis.spec.masks or self.shared.analysis.spec.scores:
            return (Statement("stage, phase", "at % STAGES, at // STAGES & 1"),)
        return (
            Comment("unsigned numbers take fewer instructions, which pays off up to 64 columns"),
            Statement("walked", "tl.cast(at, tl.uint32) if BLOCK_D <= 64 else at"),
            Statement("stage, phase", "tl.cast(walked % STAGES, tl.int32), tl.cast(walked // STAGES & 1, tl.int32)"),
        )

    @property
    def _head_loads(self) -> tuple[Statement, ...]:
        """The loads for each query head."""
        loads = (load for load in self.terms.loads("head") if load.target not in self.pairs.pointers)
        return tuple(map(self._laid_out, loads))

    @property
    def _load_results(self) -> tuple[str, ...]:
        return ("at", "ends")

    @property
    def _load_taken(self) -> tuple[str, ...]:
        place = (*self.shared.storage.place("q"), *self.shared.storage.told, "come")
        given = ("q_desc", "dout_desc", "lse_ptr", "delta_ptr", "row_base", *place, "h", "q_len")
        terms = ("terms",) if self._lse else ()
        known = (*self._load_results, "q_start", *given, "queries", *terms, "BLOCK_M", "STAGES")
        return (*known, *self.pairs.taken(known))

    @property
    def _lse(self) -> tuple[Block, ...]:
        """The statements that subtract a query's addend from its LSE, after the tuple of the names they read."""
        return self.added.less(self.terms, programs.rows("q")) if self.added else self.uniform.handed_on

    @property
    def _k_added(self) -> tuple[Statement, ...]:
        """The addends of a worker's keys."""
        return (Statement("k_added", self.added.of("k", LOG2), shape="[64]"),) if self.added else ()

    @property
    def _enter(self) -> tuple[Statement, ...]:
        """The statements that find a tile and its sequence's rows; past a sequence's end, rows remain to be cleared."""
        a = self.shared.analysis
        return (
            *((Statement("Hkv", "Hq // GROUP"),) if a.spec.grouped else ()),
            Statement("k_start", "tile * BLOCK_N"),
            *a.storage.found("qk"),
            *self.order.room,
        )

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        p, a, sums = self.shared, self.shared.analysis, self.sums
        body = (
            *self._head_loads,
            *self._placed,
            *self._k_added,
            *sums.begun,
            *self.step.packed,
            *self.walk.blocks,
            *sums.stored,
        )
        stored = {"dk_ptr", "dv_ptr", "scale", "Hq", "k_len", a.kv_heads, *names(p.storage.rows("k"), a.rescale)}
        given = ("keys", "turns", "exchange", "queries")
        constants = ("D", "DV", "BLOCK_D", "BLOCK_DV", "K_STAGES", "WORKERS")
        share = ("tile * WORKERS + WORKER", "room * WORKERS", "WIDE")
        cleared = self._cleared([("dk", "D"), ("dv", "DV")], share)
        read = stored | names(*self.order.given)
        work = self._role("arguments", body, read, given, constants, cleared, walk=self.walk)
        loader, adder = self.loader, self._adder
        v_tile, weighing = held_values.texts(self.holds_values)
        early, late, behind = self.dropout.issued(Statement("weighing", weighing))
        blocks: dict[str, tuple[Block, ...]] = {
            **self._scoring,
            "stage": self._stage,
            "weighing": early,
            "weighing_late": late,
            "place_found": self.order.found,
            **work.blocks("work"),
            **loader.blocks("load"),
            **adder.blocks("add"),
            "keys_loaded": copies.keys(p),
            "queries_loaded": copies.queries(p),
            "lse_loaded": self._lse,
            **self.pairs.blocks,
            "pairs_stored": self.pairs.stored if self.stores_pairs else (),
            "packed": tuple(role.bundle.packed for role in (work, loader, adder)),
        }
        texts = {
            "work_takes": ", ".join(work.taken),
            "load_takes": ", ".join(loader.taken),
            "add_takes": ", ".join(adder.taken),
            "add_share_takes": ", ".join(("at", "place", *self._shared_out)),
            "pairs": "".join(f", {name}" for name in self.pairs.buffers),
            "load_queries_takes": ", ".join(self._load_taken),
            "load_results": ", ".join(("at + 1", *self._load_results[1:])),
            "results": ", ".join(("at + 1", *self.step.results[1:])),
            **self._factors,
            "v_tile": v_tile,
            "behind": behind,
            "pieces": self._pieces,
            "used": self.dropout.weights,
            "dv": self.dropout.dv,
            "ones": self._ones,
            "heads": self.order.named,
            "place_takes": ", ".join(("place", *self.order.takes)),
            "place_given": ", ".join(self.order.given),
            "place_tells": self.order.tells,
            "exchange": self.sums.exchanged("factors_ready", "shares_ready", "shares_read"),
            "exchange_made": self.sums.exchanged(
                "barriers(2, WORKERS + 1)", "barriers(WORKERS, 1)", "barriers(1, 1).index(0)"
            ),
        }
        return Kernel("backward", self.parts, "hopper/backward.jinja", self.order.grid, self.step, blocks, texts)

    @property
    def of_steps(self) -> tuple[str, ...]:
        """The templates of functions that only some steps call."""
        called = {"values": self.holds_values, "sum_up": bool(self.sums.keys), "add_at_distances": bool(self.tables)}
        return tuple(f"hopper/{name}.jinja" for name, calls in called.items() if calls)

    @property
    def _ones(self) -> str:
        """The axes of size 1 that precede the rows of a tile in shared memory, as text."""
        return "1, " * (self.shared.storage.coordinates("q", "h", "0").count(",") - 1)

    @property
    def _sum_tile(self) -> str:
        return f"({self.shared.storage.tiled_rows} // 64 * ({self._pieces})).to(tl.int32)"

    @property
    def _pieces(self) -> str:
        """The number of pieces of dQ side by side, as text."""
        return "(BLOCK_D + 63) // 64"

    @property
    def _scoring(self) -> dict[str, tuple[Block, ...]]:
        """The statements of a step that turns scores into weights, and the barrier for tiles that are cut."""
        return {
            "rows": (*self.step.unpacked, *self._rows(self._scored)),
            "scored": self.uniform.scored(self._scored),
            **self._hiding,
            "sloped": self._sloped,
            **self._dropping,
            "summed": self.sums.step,
            "exact": (Statement("exact", "ds", label="in float32"),) if self.tables else (),
            "by_distance": self._tables_learn,
            "eighths": self.sums.eighths,
            "barriers": (copies.arrival(self.shared, "come"),),
        }

    @property
    def _hiding(self) -> dict[str, tuple[Block, ...]]:
        """The statements of the mask, by their place: `hidden` before weights are computed, or `masked` after.

        A branch costs least before, where the wait for scores splits the step anyway. If something is added to scores
        after that, weights are cleared instead: an addend may be inf at positions that the mask hides.
        """
        front = not self._masks_all and not self.added and not self.uniform.aside()
        hides = Statement("p", "tl.where(keep, p, 0.0)")
        if front:
            hides = Statement("score", 'tl.where(keep, score, float("-inf"))')
        made = self.step.masked((*self._masked, hides, *self.terms.guarded))
        return {"hidden": made if front else (), "masked": () if front else made}

    @cached_property
    def loader(self) -> Role:
        """The warp that loads."""
        p = self.shared
        taken = tuple(one.packed for one in self._lse if isinstance(one, Bundle))
        walk = self._walk(", ".join(self._load_results), "load_queries", self._load_taken, *taken)
        body = (Statement("row_base", p.storage.head_rows), *walk)
        tiles = ("q_desc", "k_desc", "v_desc", "dout_desc", *self.pairs.descriptors)
        given = ("keys", "turns", "queries", *tiles, "come")
        read = {"lse_ptr", "delta_ptr", "taken_ptr", "items", "k_len", *reads(copies.keys(p))}
        return self._role("lengths", body, read, given, ("K_STAGES", "WORKERS"), place="place")

    @cached_property
    def _adder(self) -> Role:
        """The warp that adds shares of dQ to memory."""
        body = self._walk("at", "add_share", ("at", self._share_tile, *self._shared_out))
        read = {"taken_ptr", *names(*self.order.given)}
        given = ("keys", "turns", "exchange", "dq_sum_desc", *(q.name for q in self._of_pairs))
        fixed, constants = ("BLOCK_M", "BLOCK_N"), ("BLOCK_D", "K_STAGES", "WORKERS")
        return self._role(
            "counted", (Statement("sum_tile", self._sum_tile), *body), read, given, constants, fixed=fixed
        )

    def _walk(self, results: str, function: str, taken: tuple[str, ...], *before: Block) -> tuple[Block, ...]:
        """The walk of warps that compute no scores: the same tiles in the same order, with one call for each.

        Before it come the loads that a query head needs to find its tiles, and the statements in `before`.
        """
        loops = self._loops(lambda mixed, tail: Call(results, function, taken))
        return (*needed(self._head_loads, reads((*loops.range, *before))), *before, *loops.blocks)

    @property
    def _shared_out(self) -> tuple[str, ...]:
        """The arguments with which a program's share of dQ is written to memory, and its dS if that is a gradient."""
        return (*_SHARED_OUT, *(self.pairs.stores if self.stores_pairs else ()))

    @property
    def _share_tile(self) -> str:
        """The first piece of dQ for the current queries, as text."""
        return f"sum_tile + q_start // 64 * ({self._pieces})"

    def _role(
        self,
        bundle: str,
        body: tuple[Block, ...],
        read: Iterable[str],
        given: tuple[str, ...],
        constants: tuple[str, ...],
        cleared: tuple[Block, ...] = (),
        fixed: tuple[str, ...] = _FIXED,
        place: str = "",
        walk: QueryWalk | None = None,
    ) -> Role:
        """The warps that run `body` for each head, are `given` buffers, and also `read` some names.

        They compute which tile is at a `place`, or are handed it, and walk over the program's tiles of queries unless
        `walk` is one of their own.
        """
        a, terms = self.shared.analysis, self.terms
        heads = (Loop("h", "kv_h * GROUP", "(kv_h + 1) * GROUP", body),) if a.spec.grouped else body
        known = (walk or self._loops(self.step.call)).range_for(heads) if a.shared_range else ()
        scaled = (IN_LOG2,) if self._in_log2 else ()
        opened = (a.begin, *programs.drawn(a), *programs.rows("k"), *scaled, *terms.loads("program"))
        rows = map(self._laid_out, opened)
        own = needed(tuple(rows), reads((*known, *heads)))
        read = {"k_start", "k_len", *read, *reads((*cleared, *own, *known, *heads))}
        enter = needed(((self.order.placed(place),) if place else ()) + self._enter, read)
        taken = partition(bundle, self.parts, read | reads(enter), given, fixed, constants)
        numbers, own = numbers_first(terms, own)
        return Role(taken.bundle, taken.taken, numbers, enter, cleared, own, (*known, *heads))

    @property
    def holds_values(self) -> bool:
        """True if half of the values are kept in registers."""
        return held_values.fit(self.shared.spec, self._masked)

    def _cleared(self, tensors: Iterable[tuple[str, str]], share: tuple[str, str, str]) -> tuple[Block, ...]:
        """The statements that zero a share of the rows of some tensors that belong to no sequence."""
        return tuple(programs.cleared(self.shared.analysis, "k", tensors, share)) if self.cut else ()
