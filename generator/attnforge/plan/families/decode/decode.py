"""Decoding: new tokens attend to a cache, whose keys are divided into splits; partial results are joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from ....language.spec import Spec
from ... import (
    cached_arguments,
    cached_latent,
    cached_range,
    rotation,
    running_sums,
    softmax,
    tile_ranges,
    visibility,
)
from ...analysis import Analysis, analyse
from ...arguments import Argument
from ...cached_arguments import CachedArgument
from ...cached_heads import Heads
from ...cached_range import CachedRange, KeySpan
from ...cached_terms import CachedTerms
from ...paged import PAGED, cache_strides, decoded, scale_strides
from ...parameters import Function, Kernel, Parameter, Step, jitted
from ...shared_parameters import SharedParameters
from ...splits import CHUNK, FEW, MANY_ROWS, PAIRED, TOGETHER, Table, table
from ...statements import Block, Call, Comment, Loop, Statement, code_names, names, needed, reads, targets
from . import joining, scan, weight_sums
from .scan import Scans

_TABLES = (
    *("cos_ptr", "cos_stride_row", "cos_stride_column", "sin_ptr", "sin_stride_row", "sin_stride_column"),
    "position_end",
)
# these may be None in a call, which a tuple cannot hold
_OPTIONAL = ("q_unit", "pages_ptr", "k_scale_ptr", "v_scale_ptr")
_SEQUENCES = (Parameter("seq_lens_ptr", "*i32", "seq_lens"), Parameter("cu_seqlens_q_ptr", "*i32", "cu_seqlens_q"))
_SIZES = (
    *(Parameter("tokens", "i32", "q.shape[0]"), Parameter("longest", "i32", "longest")),
    *(Parameter("max_seqlen_k", "i32", "max_seqlen_k", own=True), Parameter("Hq", "i32", "q.shape[1]")),
    *(Parameter("splits", "i32", "splits"), Parameter("split_size", "i32", "split_size")),
    *(Parameter(name, "i32", name, own=True) for name in ("reach", "first_keys")),
)
_END_STAGES = Parameter("END_STAGES", "constexpr", "min(stages, 2)")
_OVERLAP = Parameter("OVERLAP", "constexpr", "runtime.overlaps(q.device)")
_COUNTS = {
    "B": "seq_lens.shape[0]",
    "T": "q.shape[0]",
    "Tq": "longest",
    "Tk": "max_seqlen_k",
    "P": "k_cache.shape[0]",
    "page": "k_cache.shape[1]",
    "Hq": "q.shape[-2]",
    "Hkv": "k_cache.shape[-2]",
}


@dataclass(frozen=True)
class Decode:
    """The kernels of a variant's decoding, as templates print them."""

    shared: SharedParameters
    taken: tuple[Argument, ...]  # the keywords of `attention`
    known: frozenset[str]  # the names that kernels.py defines
    few: ClassVar = FEW  # with up to this many rows in a tile, rows are columns of products
    chunk: ClassVar = CHUNK  # the number of splits that are joined one after another
    paired: ClassVar = PAIRED  # with this many programs per multiprocessor or more, each reads two key heads
    together: ClassVar = f"{TOGETHER}, {MANY_ROWS}"  # query heads whose rows a program joins, and from how many rows on

    @property
    def spec(self) -> Spec:
        """The spec as decoding kernels see it."""
        return self.shared.spec

    @property
    def analysis(self) -> Analysis:
        """The analysis of the spec."""
        return self.shared.analysis

    @property
    def splits(self) -> Table:
        """Tiles and splits by head size."""
        return table(self.spec.latent, self.terms.loading)

    @cached_property
    def arguments(self) -> tuple[CachedArgument, ...]:
        """The keywords that come from terms and inputs."""
        return cached_arguments.build(self.spec, self.taken)

    @cached_property
    def seen(self) -> CachedRange:
        """The range of keys that new tokens may see."""
        return cached_range.build(self.spec)

    @property
    def bounds(self) -> tuple[str, ...]:
        """The numbers of a call against which its shapes are checked."""
        sizing = dict.fromkeys(name for given in self.spec.inputs for name in given.numbers)
        return ("max_seqlen_q", "max_seqlen_k", "split_size", *sizing)

    @property
    def deciding(self) -> tuple[str, ...]:
        """The other numbers of a call that decide which keys new tokens may see."""
        return tuple(name for name in self.seen.numbers if name not in self.bounds)

    @property
    def sizes(self) -> dict[str, str]:
        """The sizes that occur in the shapes of these keywords, and the host's texts of them."""
        named = names(*(text for one in self.arguments for text in (one.shape, one.packed)))
        return {name: text for name, text in _COUNTS.items() if name in named}

    @property
    def passed(self) -> tuple[str, ...]:
        """The names of all keywords in the host's code."""
        return tuple(a.code for a in self.taken)

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the keywords that are tensors."""
        return tuple(a.code for a in self.taken if a.kind == "tensor")

    @cached_property
    def terms(self) -> CachedTerms:
        """The spec's terms."""
        return CachedTerms(running_sums.in_cache(self.spec), "q")

    @cached_property
    def scans(self) -> Scans:
        """The running sums of its inputs."""
        return scan.build(self.spec, self.seen, _SEQUENCES, _OVERLAP)

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels, in the order in which a file holds them."""
        return (*self.scans.kernels, self.split, self.join, *((self.sums,) if self.sums else ()), self.append)

    @cached_property
    def sums(self) -> Kernel | None:
        """The kernel that sums the weights of each key, if the spec asks for it."""
        return weight_sums.build(self.alone, self.analysis, self.terms, self.span, self.scans)

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that the kernels call and kernels.py does not define."""
        span = Function("decode/functions.jinja", "span_function", (self.span,))
        read = code_names((*self.terms.loads("step"), *self.terms.loads("mask"), *self.terms.loads("program")))
        read |= {"find_page"} if self.scans.each else set()
        found = (
            *jitted("decode/functions", *PAGED.functions, *(("find_page",) if "find_page" in read else ()), "nth_of"),
            span,
            *self.scans.functions,
            *jitted("decode/functions", *cached_latent.loads(self.analysis), "quantised", "row_units", "in_units"),
            *jitted("decode/functions", "find_rows"),
            *self.heads.functions,
            *jitted("decode/products", "multiply", "add_values", "sum_by_thread", "sum_pairs", "by_chunk"),
            *joining.functions(self.shared, self.seen.known),
        )
        if not self.spec.rope:
            return found
        return (*found, Function("decode/functions.jinja", "load_rotated", (rotation.partners(self.spec.rope),)))

    @property
    def imports(self) -> tuple[str, ...]:
        """The names that the file imports from kernels.py."""
        blocks = (block for kernel in self.kernels for block in kernel.blocks.values())
        found = code_names(*blocks, self.span.body)
        own = {function.defines for function in self.functions}
        turning = {"rotated"} if self.spec.rope else set()
        return tuple(sorted(found & self.known - own | turning | self.scans.imports | {"LOG2E", "add_product"}))

    @cached_property
    def span(self) -> KeySpan:
        """The function that computes which keys a tile of rows sees."""
        by_row = {access.name for access in self.terms.accesses if self.terms.extent(access)}
        return KeySpan(tile_ranges.build(self.spec, "k"), frozenset({"h", *by_row}))

    @property
    def heads(self) -> Heads:
        """The key heads of a program: only one if terms read values of it."""
        loads = (load for place in ("program", "step", "mask") for load in self.terms.loads(place))
        return Heads(not self.spec.latent and "kv_h" not in reads((*loads, *self.terms.narrowed)))

    @cached_property
    def step(self) -> Step:
        """The function that attends to a tile of keys."""
        terms, scale = self.terms, "scale" if self.spec.scores else "scale_log2"
        loads = (*terms.loads("step"), *terms.loads("mask"))
        results = ("acc", "m", "l", "page")
        own = (*results, "q_tile", *cached_latent.names(self.analysis, "q_rest"), "k_start", *_OPTIONAL)
        scales = (f"{x}_scale_stride_{axis}" for x in "kv" for axis in ("page", "token"))
        strides = (*(f"{x}_stride_{axis}" for x in "kv" for axis in ("page", "token")), *scales)
        read = reads((*terms.score, *terms.keep, *loads))
        walked = ("k_ptr", "v_ptr", "k_begin", "lo", "hi", *(x for x in ("b", "k_len") if x in read), *strides)
        known = {*results, *own, *walked, scale, "k_pos", "inside", "k_page", "k_slot", *targets(loads)}
        words = (scale, *terms.passed(read, known))
        behind = (*cached_latent.names(self.analysis, "REST", "V_IN_K"), *self.heads.names)
        sizes = ("PAGE", "D", "DV", "BLOCK_N", "BLOCK_D", "BLOCK_DV", *behind)
        constants = (*sizes, "PRECISION", "SUMS", "IN_TWOS", "FAR", "TURNED")
        return Step("attend", results, own, (("keys", walked), ("terms", words)), constants, tails=False)

    @cached_property
    def split(self) -> Kernel:
        """The kernel that attends to one split of keys."""
        p, terms, heads = self.shared, self.terms, self.heads
        loaded = (*self.analysis.scaled, *terms.loads("program"))
        read = {"place", "h", "row"} | reads((*self._queries, *self._visit, *heads.narrowed))
        return Kernel(
            "attend_split",
            (
                *(Parameter(f"{x}_ptr", "*T", x) for x in "qkv"),
                *_SEQUENCES,
                Parameter("pages_ptr", "*i32", "page_table"),
                Parameter("k_starts_ptr", "*i32", "k_starts"),
                Parameter("parts_ptr", "*fp32", "parts", written=True),
                Parameter("scale", "fp32", "scale"),
                *(Parameter(f"{x}_scale_ptr", "*fp32", f"{x}_scale") for x in "kv"),
                *joining.taken(p),
                *p.given(terms),
                *self.scans.parameters,
                *self._angles,
                *(Parameter(f"q_stride_{axis}", "i32", f"q.stride({i})") for i, axis in enumerate(("token", "head"))),
                *cache_strides("k"),
                *cache_strides("v"),
                *scale_strides("k"),
                *scale_strides("v"),
                Parameter("pages_stride_sequence", "i32", "0 if page_table is None else page_table.stride(0)"),
                Parameter("k_places", "i32", "k.shape[1]"),
                *_SIZES,
                *p.constants("GROUP"),
                Parameter("PAGE", "constexpr", "1 if page_table is None else k.shape[1]"),
                *p.constants("D", "DV", "PAIRS", "BLOCK_M", "BLOCK_N", "BLOCK_D", "BLOCK_DV", "REST"),
                *p.constants("PRECISION"),
                *cached_latent.constants(self.analysis),
                *heads.constants,
                Parameter("BY_HEAD", "constexpr", "scaled_by_head(k_scale)"),
                Parameter("FAR", "constexpr", "max(k.stride(1), v.stride(1)) >= 2**24"),
                _OVERLAP,
                *((_END_STAGES,) if self._has_ends else ()),
                *joining.counted(),
            ),
            "decode/split.jinja",
            f"(splits * {heads.grid}, sequences)",
            self.step,
            {
                "step_enter": self.step.unpacked,
                "scored": (*terms.loads("step"), *terms.score),
                "behind": cached_latent.scored(self.analysis, "there"),
                "values": cached_latent.values(self.analysis, heads.texts["wider"]),
                "units": cached_latent.in_units(self.analysis),
                "masked": (*terms.loads("mask"), *visibility.masked(terms, ["inside[None, :]"])),
                "unseen": softmax.unseen(_without_sink(self.spec)),
                "counted": heads.counted,
                "sequence": (PAGED.sequence(), PAGED.first_key()),
                "rows": needed((*heads.rows, *self.scans.first, *loaded), read),
                "apart": heads.apart,
                "narrowed": heads.narrowed,
                "queries": self._queries,
                "start": softmax.start(_without_sink(self.spec), sums="SUMS"),
                "visit": self._visit,
                **joining.blocks(p, heads.texts["queries"]),
            },
            heads.texts,
        )

    @property
    def alone(self) -> Kernel:
        """The same kernel, with programs that do not join partial results."""
        return replace(self.split, parts=joining.left(self.split, self.shared))

    @property
    def _visit(self) -> tuple[Block, ...]:
        """The statements that attend to the tiles of a split that the rows see."""
        found = "find_tile(pages_ptr, first * BLOCK_N, lo, hi, BLOCK_N, PAGE)"
        page = Statement("page", f"b if pages_ptr is None else {found}")
        return self.span.visit(*self.step.packed, page, *self._loops, narrowed=self.terms.narrowed)

    @property
    def _loops(self) -> Iterator[Block]:
        """The loops over tiles; if masks load values, tiles that need no mask have a loop of their own."""
        if not self.terms.loads("mask"):
            mixed = Statement("mixed", "(k_start < full_lo) | (k_start + BLOCK_N > full_hi)")
            yield self._loop("first", "last", "mixed", mixed)
            return
        if not self._has_ends:
            yield self._loop("first", "last", "True")
            return
        begin = "full_first" if self.span.tiles.left else "first"
        yield Comment("loads of masks under a branch would slow down all tiles, and with more stages take their memory")
        if begin != "first":
            yield Statement(begin, "tl.minimum(tl.maximum(tl.cdiv(full_lo, BLOCK_N), first), last)")
            yield self._loop("first", begin, "True", stages=_END_STAGES.name)
        yield Statement("full_last", f"tl.minimum(tl.maximum(full_hi // BLOCK_N, {begin}), last)")
        yield self._loop(begin, "full_last", "False")
        yield self._loop("full_last", "last", "True", stages=_END_STAGES.name)

    @property
    def _has_ends(self) -> bool:
        """Whether tiles that need a mask are at the ends of a range, in loops of their own."""
        return bool(self.terms.loads("mask")) and self.span.tiles.full

    def _loop(self, begin: str, end: str, mixed: str, *before: Block, stages: str | None = None) -> Loop:
        """A loop that attends to tiles of a split, and applies the mask to those that are `mixed`."""
        step = self.step.call(mixed, "")
        return Loop("i", begin, end, (Statement("k_start", "i * BLOCK_N"), *before, step), stages)

    @property
    def _queries(self) -> tuple[Block, ...]:
        """The statements that load a tile of queries."""
        place = "(token + row).to(tl.int64) * q_stride_token + h.to(tl.int64) * q_stride_head"
        found: tuple[Block, ...] = (Statement("q_place", place),)
        if self.spec.rope:
            position = "q_pos if positions_ptr is None else tl.load(positions_ptr + token + row)"
            found = (*found, Statement("position", position))
        return (*found, *cached_latent.queries(self.analysis, self._query))

    def _query(self, name: str, behind: bool) -> Block:
        """The statement that loads a tile of queries, or the columns after it."""
        first, columns = ("BLOCK_D", "REST") if behind else ("0", "BLOCK_D")
        if self.spec.rope:
            taken = ("q_ptr", "q_place", "place < count", "position", *_TABLES, first, "D", "PAIRS", columns)
            return Call(name, "load_rotated", taken)
        start, width = ("q_ptr + BLOCK_D", "D - BLOCK_D") if behind else ("q_ptr", "D")
        loaded = f"load_places({start}, q_place, place < count, {width}, {columns})"
        return Statement(name, loaded, shape=f"[BLOCK_M, {columns}]")

    @property
    def _angles(self) -> Iterator[Parameter]:
        """The parameters for the angles of positions, and for the positions of new tokens."""
        left = {f"positions_stride_{axis}" for axis in self.shared.storage.outer}
        return (parameter for parameter in self.shared.angles() if parameter.name not in left)

    @cached_property
    def join(self) -> Kernel:
        """The kernel that joins the partial results of a row."""
        return joining.build(self.shared, _SEQUENCES, _SIZES, _OVERLAP)

    @cached_property
    def append(self) -> Kernel:
        """The kernel that stores new keys and values at their places in a cache."""
        places = tuple(
            Statement(f"{x}_new_place", f"t * {x}_new_stride_token + h.to(tl.int64) * {x}_new_stride_head")
            for x in "kv"
        )
        loads: tuple[Block, ...] = (Statement("k_rows", "load_places(k_new_ptr, k_new_place, there, D, BLOCK_D)"),)
        if self.spec.rope:
            position = Statement("position", "tl.load(positions_ptr + t + tl.zeros([BLOCK_H], tl.int32))")
            taken = ("k_new_ptr", "k_new_place", "there", "position", *_TABLES, "0", "D", "PAIRS", "BLOCK_D")
            loads = (position, Call("k_rows", "load_rotated", taken))
        values = Statement("v_rows", "load_places(v_new_ptr, v_new_place, there, DV, BLOCK_DV)")
        constants = {"D": "k.shape[-1]", "DV": "v.shape[-1]", "PAIRS": "cos.shape[1]"}
        constants |= {"BLOCK_H": "runtime.power_of_2(k.shape[2])"}
        constants |= {"BLOCK_D": "runtime.power_of_2(k.shape[-1])", "BLOCK_DV": "runtime.power_of_2(v.shape[-1])"}
        return Kernel(
            "append_rows",
            (
                *(Parameter(f"{x}_new_ptr", "*T", f"{x}_new") for x in "kv"),
                *(Parameter(f"{x}_ptr", "*T", x, written=True) for x in "kv"),
                Parameter("slots_ptr", "*i64", "slot_mapping"),
                *(Parameter(f"{x}_scale_ptr", "*fp32", f"{x}_scale") for x in "kv"),
                *self._angles,
                *(
                    Parameter(f"{x}_new_stride_{axis}", "i32", f"{x}_new.stride({i})")
                    for x in "kv"
                    for i, axis in enumerate(("token", "head"))
                ),
                *cache_strides("k"),
                *cache_strides("v"),
                *scale_strides("k")[1:],
                *scale_strides("v")[1:],
                Parameter("slots", "i32", "k.shape[0] * k.shape[1]"),
                Parameter("page_size", "i32", "k.shape[1]"),
                Parameter("Hkv", "i32", "k.shape[2]"),
                Parameter("MEASURED", "constexpr", "measured"),
                *((Parameter("V_IN_K", "constexpr", "v_in_k"),) if self.spec.latent else ()),
                *(
                    Parameter(name, "constexpr", text)
                    for name, text in constants.items()
                    if self.spec.rope or name != "PAIRS"
                ),
            ),
            "decode/append.jinja",
            "(k_new.shape[0],)",
            blocks={"rows": (*places, *loads, values), "stored": cached_latent.stored(self.analysis)},
        )


def _without_sink(spec: Spec) -> Spec:
    """The spec as a split sees it: sinks are added when splits are joined."""
    return replace(spec, sink=False)


def build(spec: Spec, taken: tuple[Argument, ...], known: Iterable[str]) -> Decode | None:
    """The kernels of a variant's decoding, if its spec asks for it; `known` are the names that kernels.py defines."""
    if "decode" not in spec.exports:
        return None
    return Decode(SharedParameters(analyse(decoded(spec))), taken, frozenset(known))
