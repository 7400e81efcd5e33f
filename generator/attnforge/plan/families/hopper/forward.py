"""The forward pass for Hopper GPUs, in Gluon: one warp loads and workers multiply, in a persistent kernel."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from ... import programs, softmax, visibility
from ...access import Site
from ...analysis import IN_LOG2
from ...kernel_terms import KernelTerms
from ...loops import Loops
from ...parameters import Kernel, Parameter, Step
from ...shared_parameters import TILED, SharedParameters
from ...statements import Block, Branch, Bundle, Call, Statement, names, needed, reads, targets
from ..partition import numbers_first, partition
from ..portable import in_groups, rows_of_keys
from . import by_distance, copies, steady_rows, tile_order
from .additions import Added
from .dropout import Dropout
from .pair_tiles import PairTiles
from .scores import scaled
from .tile_order import Order
from .vectors import BEGIN_READY, ENOUGH, IN_LINE, READY, Vector, hand_on, taken, vectors, wait
from .walk import Walk

_STAGED = ("STAGES", "Q_STAGES")
_ROWS_OF_SCORES, _KEYS_OF_SCORES = "gl.SliceLayout(1, SCORES)", "gl.SliceLayout(0, score.type.layout)"
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
    def vectors(self) -> tuple[Vector, ...]:
        """The values of each key that steps read, apart from the addend where its scores start."""
        return vectors(self.terms, ("mask",) if self.added else ("step", "mask"))

    @cached_property
    def pairs(self) -> PairTiles:
        """The values of pairs that steps read from tiles of their own."""
        return PairTiles(self.shared, "k")

    @property
    def begin(self) -> tuple[Vector, ...]:
        """The addend where the scores of each key start, if it is not 0."""
        return (self.added.begin,) if self.added else ()

    @cached_property
    def handed(self) -> tuple[Vector, ...]:
        """All values of each key that the loader passes on."""
        return (*self.begin, *self.vectors)

    @cached_property
    def read(self) -> tuple[Statement, ...]:
        """The statements with which it reads those values for a tile."""
        loads = (*self.terms.loads("step"), *self.terms.loads("mask"))
        return needed((*loads, *(vector.read for vector in self.begin)), (vector.name for vector in self.handed))

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
            *self.pairs.parameters(p.given(self.terms)),
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
        read = reads((*self._score, *terms.visible(apart=True), *loads))
        passed = terms.passed(read, known, by_distance.places(terms))
        return Step("weigh", results, own, (("terms", (*fixed, *passed)),), ("BLOCK_N", "OVERLAPPED"), False)

    @property
    def _steadily_taken(self) -> tuple[str, ...]:
        """Arguments of a step whose rows keep the reference that their weights are relative to."""
        read = {"m", "l", "score", "terms"} | reads((*self._keys(masked=False), *self._scored()))
        return tuple(name for name in (*self._own("m"), "terms", "BLOCK_N") if name in read)

    def _own(self, *measured: str) -> tuple[str, ...]:
        """A step's arguments for a tile, after the `measured` ones that its weights are relative to."""
        return (*measured, "l", "score", "k_start", *(vector.tile for vector in self.vectors), *self.pairs.tile)

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
        lengths = needed(loads, reads((*self.loops.range, *self.read)))
        stored = {"out_ptr", "lse_ptr", "q_len", "Hq", *names(p.storage.head_rows, p.storage.rows("q"), a.rescale)}
        loaded = reads((*lengths, *self.loops.range, *self._load_keys, *self.read))
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
            (*order.given, "queries", "buffers", "q_desc", "k_desc", "v_desc", *self.pairs.descriptors, "v_come"),
            fixed,
            ("WORKERS",),
        )
        numbers, own = numbers_first(terms, (*own, *self._begun))
        numbers_of_loader, lengths = numbers_first(terms, lengths)
        blocks: dict[str, tuple[Block, ...]] = {
            "scored": (*self.step.unpacked, *self._keys(), *self._scored()),
            "scored_on": (*self.step.unpacked, *self._keys(masked=False), *self._scored(_AT_ONCE)),
            "below": self._below,
            "begin_comes": self._begin_comes,
            "first_vectors": self._vectors_come("True"),
            "vectors_come": self._vectors_come("mixed"),
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
            "keys_read": (*self._loaded, *IN_LINE, *self.read) if self.handed else (),
            "begin_stored": hand_on(BEGIN_READY, self.begin),
            **self.pairs.blocks,
            "vectors": hand_on(READY, self.vectors),
            "values": copies.values(p),
            **tile_order.loads(self.walk.spanned, self._load_keys, self.cut or self.walk.spans > 1),
            "buffers": (
                *((ENOUGH,) if self.vectors else ()),
                *(Statement(barriers, "barriers(STAGES, 1)") for barriers in self._barriers),
                *(vector.made for vector in self.handed),
                *self.pairs.blocks["pairs_made"],
                copies.arrival(p, "v_come"),
            ),
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
            "adds": str(bool(self.begin)),
            "rescale": a.rescale,
            "vectors": "".join(f", {name}" for name in self._buffers),
            "takes": ", ".join((*self._taken, "mixed")),
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
        read = reads((*self._loads("step"), *self._score)) | (of_masks if masked else set())
        found = needed(programs.rows("k"), read)
        value = f"k_start + gl.arange(0, BLOCK_N, {_KEYS_OF_SCORES})"
        return tuple(dataclasses.replace(x, value=value) if x.target == "k_pos" else x for x in found)

    @property
    def _masked(self) -> tuple[Block, ...]:
        """The statements that compute `keep`."""
        return (*self._loads("mask"), *visibility.of_keys(self.terms, apart=True))

    @property
    def _in_log2(self) -> bool:
        """True if products become scores in log2 units at once."""
        return not self._score

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
        for vector in self.begin:
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
        return ("at", *self._always_taken, *(_TURNS if self.pairs else ()))

    @property
    def _taken(self) -> tuple[str, ...]:
        """The arguments for each further tile."""
        return ("at", "visits", "acc", "packed", *self._always_taken, "WEIGHTS", *_TURNS)

    @property
    def _begin_comes(self) -> tuple[Statement, ...]:
        """The statements that wait for a tile's addends, and find them."""
        return (wait(BEGIN_READY), *(vector.at_hand for vector in self.begin)) if self.begin else ()

    @property
    def _barriers(self) -> tuple[str, ...]:
        """The names of the barriers that workers wait for, besides those of keys and values."""
        return (*((BEGIN_READY,) if self.begin else ()), *((READY,) if self.vectors else ()))

    @property
    def _buffers(self) -> tuple[str, ...]:
        """The names of what loader and workers share besides the buffers of keys and values."""
        return (*self._barriers, *(vector.buffer for vector in self.handed), *self.pairs.buffers)

    def _loads(self, site: Site) -> tuple[Statement, ...]:
        """A step's loads of the values that terms read."""
        if self.added and site == "step":
            return ()
        loads = (*self.pairs.read(self.terms.loads(site)), *(by_distance.loads(self.terms) if site == "step" else ()))
        return tuple(map(_shaped, taken(loads, self.vectors, _KEYS_OF_SCORES)))

    def _vectors_come(self, mixed: str) -> tuple[Block, ...]:
        """The statements that wait for a tile's values of keys, and find them; masks need them in mixed tiles only."""
        if not self.vectors:
            return ()
        scored = {load.target for load in self._loads("step")}
        always = mixed == "True" or any(vector.name in scored for vector in self.vectors)
        return (wait(READY) if always else Branch(mixed, (wait(READY),)), *(vector.at_hand for vector in self.vectors))

    @property
    def _loaded(self) -> tuple[Bundle, ...]:
        """The loader's arguments for reading values of keys, as one tuple, if it passes any on."""
        known = {*targets(self.read), "k_pos", *self._load_keys_takes}
        passed = self.terms.passed(reads(self.read), known, ("q_first", "scale"))
        return (Bundle("terms", passed, packs=False),) if self.handed else ()

    @property
    def _load_keys_takes(self) -> tuple[str, ...]:
        storage = self.shared.storage
        place = names(storage.coordinates("k", self.shared.analysis.kv, "k_start")) - {"0", "k_start"}
        terms = ("terms",) if self.handed else ()
        given = (*storage.told, "k_len", "ends", "v_come", "k_desc", "v_desc", "buffers", "STAGES", "BLOCK_N")
        known = ("at", "k_start", *terms, *sorted(place), *given)
        return (*known, *self.pairs.taken(known))

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
