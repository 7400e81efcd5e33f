"""The forward pass for Hopper GPUs, in Gluon: one warp loads and workers multiply, in a persistent kernel."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from ... import programs, softmax, uniform_entries, visibility
from ...access import Site
from ...analysis import IN_LOG2
from ...kernel_terms import KernelTerms
from ...loops import Loops
from ...parameters import Kernel, Parameter, Step
from ...shared_parameters import TILED, SharedParameters
from ...statements import Block, Branch, Bundle, Call, Statement, names, needed, reads, targets
from ...uniform_entries import UniformEntries
from ..partition import numbers_first, partition
from ..portable import in_groups, rows_of_keys
from . import by_distance, copies, steady_rows, tile_order
from .additions import Added
from .dropout import Dropout
from .handed import KEYS_OF_SCORES, Handed
from .scores import scaled
from .tile_order import Order
from .walk import Walk

_STAGED = ("STAGES", "Q_STAGES")
_ROWS_OF_SCORES = "gl.SliceLayout(1, SCORES)"
_TILES = ("q_desc", "k_desc", "v_desc")
_TURNS = ("WORKERS", "WORKER")
_RUNNING = ("q_tile", "k_start", "buffers")
_FIXED = ("terms", "STAGES", "D", "BLOCK_N", "SCORES", "OUT")
_AT_ONCE = "32 if OVERLAPPED else 64"  # scores handled at once in a tile that all rows see, as measured


@dataclass(frozen=True)
class Forward:
    """The forward pass of a variant."""

    shared: SharedParameters
    added: Added | None = None  # its score terms, if the accumulators of score products start from them

    @cached_property
    def terms(self) -> KernelTerms:
        """The spec's terms."""
        return self.shared.analysis.by_query

    @property
    def dropout(self) -> Dropout:
        """The spec's dropout."""
        return Dropout(self.shared.spec)

    @property
    def cut(self) -> bool:
        """True if a tile may reach into the next sequence."""
        return self.shared.storage.cut

    @cached_property
    def handed(self) -> Handed:
        """What the loading warp passes on to workers besides keys and values."""
        return Handed(self.shared, self.added)

    @cached_property
    def order(self) -> Order:
        """The order in which programs take tiles of queries."""
        return tile_order.build(self.shared.analysis, self.steady)

    @cached_property
    def steady(self) -> bool:
        """True if rows may keep the reference that their weights are relative to."""
        return steady_rows.fits(self.shared.analysis)

    @property
    def _followed(self) -> tuple[str, ...]:
        """The name of the flags of rows that track their largest score, if other rows do not."""
        return ("grows",) if self.steady else ()

    @cached_property
    def parts(self) -> tuple[Parameter, ...]:
        """The kernel's parameters, with the order of its tiles."""
        p, keys = self.shared, rows_of_keys(self.shared)
        return (
            *copies.sources(p, *keys.operands),
            Parameter("out_ptr", "*T", "out", written=True),
            Parameter("lse_ptr", "*fp32", "lse", written=True),
            *p.sizes(),
            *p.storage.aligned(),
            *self.handed.pairs.parameters(p.given(self.terms)),
            *p.skipped("q"),
            *p.sunk(),
            *p.dropped(),
            *self.order.ranked,
            *(Parameter(name, "i32", name) for name in self.order.numbers),
            *p.constants("D", *keys.constants, *(name for name in TILED if name != "PRECISION"), *_STAGED),
        )

    @property
    def told(self) -> Kernel:
        """The kernel with the parameters that the host passes."""
        p = self.shared
        told = (q for q in self.parts if q.name not in (*self.order.numbers, *_STAGED))
        return Kernel("forward", (*told, p.axis("q")), "", in_groups(p, "q", "k, v"))

    @cached_property
    def step(self) -> Step:
        """The function that turns scores into weights."""
        terms = self.terms
        loads = (*self._loads("step"), *self._loads("mask"))
        results = ("m", "l", "p", "shrink")
        own = self._own("m", *self._followed)
        scale = "scale_log2" if self._in_log2 else "scale"
        fixed = (*(("k_len",) if "k_len" in reads((*self._keys(), *self._masked)) else ()), scale)
        known = {*results, *own, *fixed, "k_pos", *targets(loads)}
        read = reads((*self._score, *terms.visible(apart=True), *loads, *self.uniform.ends))
        passed = terms.passed(read, known, (*by_distance.places(terms), "q_first", "q_last"))
        return Step("weigh", results, own, (("terms", (*fixed, *passed)),), ("BLOCK_N", "OVERLAPPED"), False)

    @property
    def _steadily_taken(self) -> tuple[str, ...]:
        """Arguments of a step whose rows keep the reference that their weights are relative to."""
        read = {"m", "l", "score", "terms"} | reads((*self._keys(masked=False), *self._scored(), *self.uniform.ends))
        return tuple(name for name in (*self._own("m"), "terms", "BLOCK_N") if name in read)

    def _own(self, *measured: str) -> tuple[str, ...]:
        """A step's arguments for a tile, after the `measured` ones that its weights are relative to."""
        return (*measured, "l", "score", "k_start", *self.handed.tiles)

    @cached_property
    def loops(self) -> Loops:
        """The loops over tiles of keys."""
        a = self.shared.analysis
        return Loops(a.keys, a.key_states, self.step.call, a.joined, False, self.terms.narrowed)

    @cached_property
    def walk(self) -> Walk:
        """How a worker walks over tiles of keys."""
        before_full = steady_rows.full_tiles(self.shared.analysis) if self.steady else ()
        return Walk(self.loops, self._first_taken, self._taken, before_full)

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        p, a, terms, order = self.shared, self.shared.analysis, self.terms, self.order
        start = softmax.start(p.spec, "gl.full", "64", (_ROWS_OF_SCORES, "SUMS"))
        share = ("tile * WORKERS + WORKER", "room * WORKERS", "WIDE")
        cleared = tuple(programs.cleared(a, "q", [("out", "DV")], share)) if self.cut else ()
        scaled, scale = ((IN_LOG2,), "scale_log2") if self._in_log2 else ((), a.scale_log2)
        packed = (*self.step.packed, *(bundle.packed for bundle in self.dropout.bundle))
        loads = (a.begin, *map(_of_worker, programs.rows("q")), *scaled, *map(_shaped, terms.loads("program")))
        loads += by_distance.placed(terms, "WORKER * 64")
        loads += (*programs.drawn(a), *self.dropout.first_query)
        own = needed(loads, {"row"} | reads((*self.walk.range, *packed, *start, *self._begun)))
        lengths = needed(loads, reads((*self.loops.range, *self.handed.read)))
        stored = {"out_ptr", "lse_ptr", "q_len", "Hq", *names(p.storage.head_rows, p.storage.rows("q"), a.rescale)}
        loaded = reads((*lengths, *self.loops.range, *self._load_keys, *self.handed.read))
        kept = steady_rows.blocks(a, scale, self.steady)
        worked = reads((*cleared, *own, *kept["grows"], *start, *packed, *self.walk.range))
        copied = names(order.there, p.storage.coordinates("q", "h", "q_start"))
        entered = needed(order.found, copied | loaded | order.read)
        enter = needed(order.handed, names(order.there) | {"h", "q_start"} | stored | worked)
        packs = tuple(bundle.packed for bundle in order.bundle)
        parts = tuple(q for q in self.parts if q.name not in reads(packs))
        fixed = ("BLOCK_M", "BLOCK_N", *_STAGED)
        work = partition(
            "arguments",
            parts,
            reads(enter) | worked | stored,
            (*order.given, "queries", "buffers"),
            fixed,
            ("D", "DV", "BLOCK_DV", "WORKERS"),
        )
        load = partition(
            "lengths",
            parts,
            reads(entered) | loaded | order.read,
            (*order.given, "queries", "buffers", *_TILES, *self.handed.pairs.descriptors, "v_come"),
            fixed,
            ("WORKERS",),
        )
        numbers, own = numbers_first(terms, (*own, *self._begun))
        numbers_of_loader, lengths = numbers_first(terms, lengths)
        blocks: dict[str, tuple[Block, ...]] = {
            "scored": (*self.step.unpacked, *self._keys(), *self.uniform.scored(self._scored())),
            "scored_on": (
                *self.step.unpacked,
                *self._keys(masked=False),
                *self.uniform.scored(self._scored(_AT_ONCE)),
            ),
            "below": self._below,
            "masked": self._masked,
            "pivot": steady_rows.pivot(p.spec),
            **kept,
            "shrunk": self._shrunk,
            "drawn": self.dropout.drawn_by_rows,
            "dropped": self.dropout.dropped,
            "work_unpacked": (work.bundle, *numbers, *order.bundle, *order.counted),
            "enter": enter,
            "cleared": cleared,
            "own": own,
            "start": start,
            "visit": (*packed, *self.walk.blocks),
            "empty": softmax.empty(p.spec),
            "load_unpacked": (load.bundle, *numbers_of_loader, *order.bundle, *order.counted),
            "load_enter": entered,
            "load_own": (*lengths, *(bundle.packed for bundle in self._loaded)),
            **self.handed.blocks(self._loaded),
            "values": copies.values(p),
            **tile_order.loads(self.walk.spanned, self._load_keys, self.cut or self.walk.spans > 1),
            "buffers": (*self.handed.made, copies.arrival(p, "v_come")),
            "packed": (work.bundle.packed, load.bundle.packed, *packs),
            **order.blocks,
        }
        texts = {
            "there": order.there,
            **order.texts,
            "order": tile_order.visited(self.loops) + (steady_rows.told() if self.steady else ""),
            "first_takes": ", ".join(self._first_taken),
            "weigh_takes": ", ".join((*self.step.own, "terms", "BLOCK_N")),
            "weigh_on_takes": ", ".join(self._steadily_taken) if self.steady else "",
            "twice": "True" if self.steady and not self.cut else "",
            "scale_log2": scale,
            "adds": str(bool(self.added)),
            "rescale": a.rescale,
            "vectors": "".join(f", {name}" for name in self.handed.buffers),
            "takes": ", ".join((*self._taken, "mixed")),
            "loaded": self.handed.told,
            "load_keys_takes": ", ".join(self._load_keys_takes),
            "work_takes": ", ".join(work.taken),
            "load_takes": ", ".join(load.taken),
            "overlapped": str(self._overlapped),
            "passes": "True" if self.walk.own else "",
            "ones": "1, " * (p.storage.coordinates("q", "h", "0").count(",") - 1),
        }
        return Kernel("forward", self.parts, "hopper/forward.jinja", "", self.step, blocks, texts)

    @property
    def _overlapped(self) -> int:
        """The measured number of value columns from which their product overlaps the search for the largest scores.

        Where that is not worth it, other products fill the time: with 128 columns if there are only masks, and with 64.
        """
        weight, worked = self.terms.weight, self.shared.spec.scores and not self.added
        return 128 if weight == "bare" or (weight == "plain" and worked) else 256

    @property
    def _shrunk(self) -> tuple[Block, ...]:
        """The statements that rescale the accumulator after larger scores; where it pays off, a vote may skip this."""
        spared: Block = Statement("acc", "shrunk(acc, shrink)")
        if not self.added:
            spared = Branch("OVERLAPPED", (spared,), (Statement("acc", "acc * shrink[:, None]"),))
        shrunk = (Statement("shrink", "gl.convert_layout(shrink, gl.SliceLayout(1, OUT))"), spared)
        return (Branch("not STEADY", shrunk),) if self.steady else shrunk

    def _keys(self, *, masked: bool = True) -> tuple[Statement, ...]:
        """The positions of a tile's keys, if terms read them; masks read nothing unless the tile is `masked`."""
        of_masks = {"k_pos"} | reads((*self._loads("mask"), *self.terms.visible(apart=True)))
        read = reads((*self._loads("step"), *self._score, *self.uniform.ends)) | (of_masks if masked else set())
        found = needed(programs.rows("k"), read)
        value = f"k_start + gl.arange(0, BLOCK_N, {KEYS_OF_SCORES})"
        return tuple(dataclasses.replace(x, value=value) if x.target == "k_pos" else x for x in found)

    @property
    def _masked(self) -> tuple[Block, ...]:
        """The statements that compute `keep`."""
        return (*self._loads("mask"), *visibility.of_keys(self.terms, apart=True))

    @property
    def _in_log2(self) -> bool:
        """True if products become scores in log2 units at once."""
        return not self._score

    @cached_property
    def uniform(self) -> UniformEntries:
        """The tables with entries for each row of which most tiles read a single one."""
        return uniform_entries.of(self.terms, rows="64")

    @property
    def _score(self) -> tuple[Statement, ...]:
        """The statements that apply terms to a score in a step."""
        return () if self.added else self.terms.score

    def _scored(self, at_once: str = "") -> tuple[Statement, ...]:
        """The statements that turn a product of queries and keys into the score."""
        return scaled(self.shared.analysis, self._loads("step"), self._score, at_once)

    @property
    def _begun(self) -> tuple[Statement, ...]:
        """The addend where the scores of each query of a worker start, if it is not 0."""
        return (self.added.of_queries,) if self.added else ()

    @property
    def _below(self) -> tuple[Statement, ...]:
        """The initial accumulator of a score product."""
        value = "gl.full([64, BLOCK_N], 0.0, gl.float32, SCORES)"
        for vector in self.handed.begin:
            value = f"q_added[:, None] + gl.expand_dims({vector.tile}.load(gl.SliceLayout(0, SCORES)), 0)"
        return (Statement("below", value),)

    @property
    def _always_taken(self) -> tuple[str, ...]:
        """The arguments for every tile of keys of a walk."""
        dropout = (bundle.name for bundle in self.dropout.bundle)
        return ("m", *self._followed, "l", *_RUNNING, *targets(self._begun), *dropout, *_FIXED)

    @property
    def _first_taken(self) -> tuple[str, ...]:
        """The arguments for the first tile."""
        return ("at", *self._always_taken, *(_TURNS if self.handed.pairs else ()))

    @property
    def _taken(self) -> tuple[str, ...]:
        """The arguments for each further tile."""
        return ("at", "visits", "acc", "packed", *self._always_taken, "WEIGHTS", *_TURNS)

    def _loads(self, site: Site) -> tuple[Statement, ...]:
        """A step's loads of the values that terms read."""
        return tuple(map(_shaped, self.handed.loads(site)))

    @property
    def _loaded(self) -> tuple[Bundle, ...]:
        """The loader's arguments for reading values of keys, as one tuple, if it passes any on."""
        return self.handed.given(self._load_keys_takes)

    @property
    def _load_keys_takes(self) -> tuple[str, ...]:
        storage = self.shared.storage
        place = names(storage.coordinates("k", self.shared.analysis.kv, "k_start")) - {"0", "k_start"}
        terms = ("terms",) if self.handed.keys else ()
        given = (*storage.told, "k_len", "ends", "v_come", "k_desc", "v_desc", "buffers", "STAGES", "BLOCK_N")
        known = ("at", "k_start", *terms, *sorted(place), *given)
        return (*known, *self.handed.pairs.taken(known))

    @property
    def _load_keys(self) -> tuple[Block, ...]:
        """The statements that load one tile of keys and of values."""
        return (
            self.loops.begun("first + last - 1 - j"),
            Call("ends", "load_keys", self._load_keys_takes),
            Statement("at", "1", "+="),
        )


def _of_worker(statement: Statement) -> Statement:
    """A statement about the rows of a tile, restricted to those of one worker."""
    if statement.target == "row":
        value = f"q_start + WORKER * 64 + gl.arange(0, 64, {_ROWS_OF_SCORES})"
        statement = dataclasses.replace(statement, value=value)
    return _shaped(statement)


def _shaped(statement: Statement) -> Statement:
    return dataclasses.replace(statement, shape=statement.shape.replace("BLOCK_M", "64"))
