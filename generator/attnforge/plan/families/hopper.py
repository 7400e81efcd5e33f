"""The forward pass for Hopper GPUs, in Gluon: a warp that loads, workers that multiply, both through all tiles."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ...language.spec import Spec
from .. import programs, softmax
from ..loops import Loops
from ..parameters import Function, Kernel, Parameter, Step, jitted
from ..score_terms import View
from ..shared_parameters import SharedParameters
from ..statements import Block, Branch, Bundle, Call, Comment, Loop, Statement, lines, names, needed, reads, targets
from .portable import rows_of_keys

_ORDER = ("items", "tiles", "group", "per_item")
_TILED = ("BLOCK_M", "BLOCK_N", "BLOCK_D", "BLOCK_DV")
_KEYS = "gl.SliceLayout(0, score.type.layout)"


@dataclass(frozen=True)
class Hopper:
    """The file of a variant's Hopper kernels."""

    kernel: Kernel
    functions: tuple[Function, ...]  # that need layouts of their own
    known: frozenset[str]  # the functions of kernels.py

    @property
    def imports(self) -> tuple[str, ...]:
        """What it takes from kernels.py."""
        called = names(*(line for blocks in self.kernel.blocks.values() for line in lines(blocks)))
        return tuple(sorted(called & self.known | {"LOG2E", "partial_row_sums"}))


def serves(p: SharedParameters) -> bool:
    """True if the variant has Hopper kernels; not yet where weights are dropped or tiles are looked at one by one."""
    states = p.analysis.key_states
    spec = p.spec
    return spec.algorithm.backward and not spec.dropout and not (states and not states.ranged)


def build(p: SharedParameters, known: frozenset[str]) -> Hopper:
    """The Hopper kernels of a variant; `known` are the functions of kernels.py."""
    functions = jitted("hopper/packed", "clear_rows", "clear_behind") if p.storage.cut else ()
    return Hopper(_forward(p), functions, known)


def _forward(p: SharedParameters) -> Kernel:
    a, view = p.analysis, p.analysis.by_query
    keys = rows_of_keys(p)
    step = _weigh(p, view)
    loops = Loops(a.keys, a.key_states, step.call, a.joined, False, view.narrowed)
    parts = (
        *p.operands(*keys.operands),
        Parameter("out_ptr", "*T", "out", written=True),
        Parameter("lse_ptr", "*fp32", "lse", written=True),
        *p.sizes(),
        *p.storage.aligned(),
        *p.given(view),
        *p.skipped("q"),
        *p.sunk(),
        *(Parameter(name, "i32", "") for name in _ORDER),
        *p.constants(*keys.constants, *_TILED),
        Parameter("STAGES", "constexpr", ""),
        Parameter("Q_STAGES", "constexpr", ""),
    )
    enter = (
        Statement(f"b, h", "place // Hq, place % Hq"),
        *a.key_head,
        Statement("q_start", "tile * BLOCK_M"),
        *programs.sequence(a, "q", []),
    )
    start = softmax.start(p.spec, "gl.full", "64", ("gl.SliceLayout(1, SCORES)", "SUMS"))
    own_rows = tuple(_own(statement) for statement in programs.rows(a, "q"))
    loads = (*own_rows, *a.scaled, *view.loads("program"))
    work_visit = _visit(p, loops, step)
    ranges = reads(loops.range)
    work_rows = needed(loads, {"row"} | ranges | reads((*step.packed, *start)))
    load_rows = needed(loads, ranges)
    runtime = [q.name for q in parts if q.type not in ("constexpr", "tiles") and q.name not in _ORDER]
    constants = [q.name for q in parts if q.type == "constexpr"]
    storing = {"out_ptr", "lse_ptr", "Hq", "q_len", *reads((Statement("", p.storage.head_rows), Statement("", p.storage.rows("q"))))}
    work_reads = reads((*enter, *work_rows, *start, *step.packed, *loops.range)) | storing
    load_reads = reads((*enter, *load_rows, *loops.range)) | {"Hq"}
    cleared: tuple[Block, ...] = ()
    if p.storage.cut:
        cleared = (_cleared(),)
        work_reads |= reads(cleared)
        load_reads |= {"k_len"}
    work_bundle = Bundle("arguments", tuple(n for n in runtime if n in work_reads), packs=False)
    load_bundle = Bundle("lengths", tuple(n for n in runtime if n in load_reads), packs=False)
    fixed = ("STAGES", "Q_STAGES", "BLOCK_M", "BLOCK_N")
    extra = tuple(c for c in constants if c in work_reads and c not in (*fixed, "DV", "BLOCK_DV"))
    load_extra = tuple(c for c in constants if c in load_reads and c not in fixed)
    work_given = ("arguments", "order", "queries", "buffers", *fixed, *extra, "WORKERS", "DV", "BLOCK_DV", "OUT_TILE")
    descs = ("q_desc", "k_desc", "v_desc")
    come = ("v_come",) if p.storage.cut else ()
    load_given = (*descs, "lengths", "order", "queries", "buffers", *come, *fixed, *load_extra, "WORKERS")
    taken = ("at", "m", "l", "q_tile", "k_start", "buffers", "terms", "STAGES", "BLOCK_N", "SCORES", "OUT")
    attend = ("at", "acc", "m", "l", "packed", *taken[3:], "WEIGHTS")
    place = ("b", a.kv) if not p.storage.cut else (a.kv, "k_offset")
    load_keys = ("at", "k_start", *(("k_len",) if p.storage.cut else ()), *place, "k_desc", "v_desc", "buffers", *come, *(("tails",) if come else ()), "STAGES", "BLOCK_N")
    return Kernel(
        "forward",
        parts,
        "hopper/forward.jinja",
        "",
        step,
        {
            "scored": (*step.unpacked, *_positions(a, view), *_scaled(a), *map(_shaped, (*view.loads("step"), *view.score))),
            "masked": (*map(_shaped, view.loads("mask")), *view.keep),
            "unseen": softmax.unseen(p.spec),
            "work_unpacked": (work_bundle,),
            "work_enter": (*enter, *cleared),
            "work_rows": work_rows,
            "start": start,
            "visit": work_visit,
            "empty": softmax.empty(p.spec),
            "load_unpacked": (load_bundle,),
            "load_counts": (Statement("tails", "0", label="tiles so far in which a sequence ended"),) if come else (),
            "load_enter": (*enter, *load_rows),
            "load_values": _values(p),
            "load_visit": _load_visit(p, loops, load_keys),
            "bundles": (
                *((Statement("v_come", "barriers(1, 1).index(0)"),) if come else ()),
                dataclasses.replace(work_bundle, packs=True),
                dataclasses.replace(load_bundle, packs=True),
                Bundle("order", _ORDER, packs=True),
            ),
        },
        {
            "there": "there & (q_start < q_len)" if p.storage.cut else "there",
            "first_takes": ", ".join(taken),
            "takes": ", ".join(attend),
            "work_takes": ", ".join((*work_given, "WORKER")),
            "work_given": ", ".join(work_given),
            "load_takes": ", ".join(load_given),
            "load_given": ", ".join(load_given),
            "load_keys_takes": ", ".join(load_keys),
            "ones": "1, " * len(p.storage.coordinates("q", "h", "0").split(", ")[:-2]),
        },
    )


def _weigh(p: SharedParameters, view: View) -> Step:
    """The function that makes weights of scores."""
    loads = (*view.loads("step"), *view.loads("mask"))
    read = reads((*view.score, *view.keep, *loads))
    results, own = ("m", "l", "p", "shrink"), ("m", "l", "score", "k_start")
    scale = "scale" if p.spec.scores else "scale_log2"
    known = {*results, *own, "k_len", scale, "k_pos", *targets(loads)}
    terms = ("k_len", scale, *view.passed(read, known))
    return Step("weigh", results, own, (("terms", terms),), ("BLOCK_N",), False)


def _own(statement: Statement) -> Statement:
    """A statement about a tile's queries, as a worker has it for its own 64."""
    if statement.target == "row":
        value = "q_start + WORKER * 64 + gl.arange(0, 64, gl.SliceLayout(1, SCORES))"
        return dataclasses.replace(statement, value=value, shape="[64]")
    return _shaped(statement)


def _shaped(statement: Statement) -> Statement:
    return dataclasses.replace(statement, shape=statement.shape.replace("BLOCK_M", "64"))


def _positions(a, view: View) -> tuple[Block, ...]:
    """The positions of a tile's keys, where terms read them."""
    found = []
    for statement in programs.rows(a, "k"):
        if statement.target == "k_pos":
            statement = dataclasses.replace(statement, value=f"k_start + gl.arange(0, BLOCK_N, {_KEYS})")
        found.append(statement)
    read = reads((*view.loads("step"), *view.loads("mask"), *view.score, *view.keep))
    return needed(found, {"k_pos"} | read)


def _scaled(a) -> tuple[Block, ...]:
    return (Statement("score", f"score{a.scaling}", label=""),) if a.scaling else ()


def _call(function: str, results: str, takes: str) -> Call:
    return Call(results, function, tuple(takes.split(", ")))


def _visit(p: SharedParameters, loops: Loops, step: Step) -> tuple[Block, ...]:
    """The loops over a worker's tiles of keys, from the last one back."""
    taken = "at, m, l, q_tile, k_start, buffers, terms, STAGES, BLOCK_N, SCORES, OUT"
    tiles, several = loops.tiles, len(loops.tiles.ends) > 1
    first: tuple[Block, ...] = (
        Statement("k_start", "(last - 1) * BLOCK_N"),
        _call("attend_first", "shrink, m, l, packed", taken),
        *((Statement("acc", "acc * shrink[:, None]"),) if several else ()),
        Statement("at", "1", "+="),
    )

    def over(begin: str, end: str, mixed: str) -> Loop:
        body: tuple[Block, ...] = (
            Statement("k_start", f"({begin} + {end} - 1 - j) * BLOCK_N"),
            _call(
                "attend",
                "acc, m, l, packed",
                f"at, acc, m, l, packed, q_tile, k_start, buffers, terms, STAGES, BLOCK_N, SCORES, OUT, WEIGHTS, mixed={mixed}",
            ),
            Statement("at", "1", "+="),
        )
        return Loop("j", begin, end, body)

    if not tiles.full:
        loop: tuple[Block, ...] = (Statement("rest", "last - 1"), over("first", "rest", "True"))
    else:
        loop = (
            Statement("rest", "last - 1", label="tiles before it are still to come"),
            over("full_last", "rest", "True"),
            Statement("rest", "tl.minimum(full_last, rest)"),
            over("full_first", "rest", "False"),
        )
        if tiles.left:
            loop += (Statement("rest", "tl.minimum(full_first, rest)"), over("first", "rest", "True"))
    end = _call("add_last", "acc", "at, acc, packed, buffers, STAGES, WEIGHTS")
    body = (*loops.range, Branch("last > first", (*first, *loop, end)))
    spans = (Loop("span", "0", str(len(tiles.ends)), body),) if several else body
    return (*step.packed, *spans)


def _load_visit(p: SharedParameters, loops: Loops, takes: tuple[str, ...]) -> tuple[Block, ...]:
    """The loops over the tiles of keys to load."""
    several = len(loops.tiles.ends) > 1
    body: tuple[Block, ...] = (
        Statement("k_start", "(first + last - 1 - j) * BLOCK_N"),
        Call("tails" if p.storage.cut else "", "load_keys", takes),
        Statement("at", "1", "+="),
    )
    visit: tuple[Block, ...] = (*loops.range, Loop("j", "first", "last", body))
    return (Loop("span", "0", str(len(loops.tiles.ends)), visit),) if several else visit


def _values(p: SharedParameters) -> tuple[Block, ...]:
    """The statements that copy a tile of values."""
    copy = "tma.async_copy_global_to_shared(v_desc, rows, {}, v_buffer.index(stage))"
    plain = (
        Statement("", "mbarrier.expect(v_ready.index(stage), v_desc.block_type.nbytes)"),
        Statement("", copy.format("v_ready.index(stage)")),
    )
    if not p.storage.cut:
        return plain
    tail = (
        Comment("the next sequence's values: 0 times a NaN would be NaN"),
        Statement("", "mbarrier.expect(v_come, v_desc.block_type.nbytes)"),
        Statement("", copy.format("v_come")),
        Statement("", "mbarrier.wait(v_come, tails & 1)"),
        Statement("", "clear_behind(matrix(v_buffer, stage), k_len - k_start)"),
        Statement("", "mbarrier.arrive(v_ready.index(stage), count=1)"),
        Statement("tails", "1", "+="),
    )
    return (Branch("k_start + BLOCK_N > k_len", tail, plain), Statement("", "return tails"))


def _cleared() -> Call:
    """Zeros in a worker's share of the rows that no sequence has."""
    given = (
        "out_ptr + tl.cast(h, tl.int64) * DV",
        "Hq * DV",
        *("b", "sequences", "q_offset", "q_len", "q_end", "q_total"),
        "tile * WORKERS + WORKER",
        "tiles * WORKERS",
        "WIDE",
        "BLOCK_DV",
        "DV",
    )
    return Call("", "clear_rows", given)
