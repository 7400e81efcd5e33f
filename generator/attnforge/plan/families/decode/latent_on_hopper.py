"""Decoding of latent heads for Hopper GPUs, in Gluon: some warps load keys, one worker scores, two add up values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from ... import cached_heads, softmax, visibility
from ...paged import PAGED
from ...parameters import Kernel, Parameter, Step
from ...splits import LEAST_ROWS, ON_HOPPER
from ...statements import Block, Bundle, Loop, Statement, code_names, needed, reads, targets
from ..partition import Partition, numbers_first, partition
from .decode import Decode

_SEQUENCES = Bundle(
    "sequences",
    (
        *("seq_lens_ptr", "cu_seqlens_q_ptr", "max_seqlen_k", "reach", "first_keys"),
        *("tokens", "longest", "splits", "split_size"),
    ),
    packs=False,
)
_WORK = ("b", "tile", "slot", "kv_h", "token", "q_len", "k_len", "split_begin", "there")
# parameters that only the portable kernel takes, by the beginnings of their names
_NEEDLESS = ("v_ptr", "k_ptr", "k_stride_", "v_stride_", "k_starts_", "k_places")
_FOUND = ("place", "row", "h")  # computed by `find_rows`, in a layout
_SIZES = ("D", "BLOCK_D", "BLOCK_DV", "REST", "V_IN_K", "PRECISION", "TURNED", "SUMS", "IN_TWOS", "FAR")
_FIXED = ("GROUP", "BLOCK_M", "BLOCK_N", "STAGES")
# the keys of a float8 cache, and their scales
_CACHE = Bundle(
    "cache",
    (
        *("k_ptr", "k_stride_page", "k_stride_token", "pages_ptr"),
        *(f"{x}_scale_{part}" for x in "kv" for part in ("ptr", "stride_page", "stride_token")),
    ),
    packs=False,
)
_LAYOUTS = ("gl.SliceLayout(1, SCORES)", "SUMS")


@dataclass(frozen=True)
class DecodeHopper:
    """The file of a variant's decoding for Hopper GPUs."""

    decode: Decode
    known: frozenset[str]  # the names that kernels.py defines
    tile = ON_HOPPER
    least_rows = LEAST_ROWS

    @cached_property
    def parts(self) -> tuple[Parameter, ...]:
        """The kernel's parameters: those of the portable one, but with keys in boxes of rows, and without values."""
        parts = self.decode.alone.parts
        found = (p for p in parts if p.name not in _SIZES and not p.name.startswith(_NEEDLESS))
        stages, rows = Parameter("STAGES", "constexpr", "stages"), Parameter("ROWS", "constexpr", "box")
        return (Parameter("k_desc", "strips", "k", ("box",)), *found, stages, rows)

    @cached_property
    def step(self) -> Step:
        """The function that turns scores into weights."""
        terms, scale = self.decode.terms, "scale" if self.decode.spec.scores else "scale_log2"
        loads = (*terms.loads("step"), *terms.loads("mask"))
        results, fixed = ("m", "l"), ("lo", "hi", scale)
        own = (*results, "score", "k_start", "at", "weights", "v_scales")
        known = {*results, *own, *fixed, "k_pos", "inside", *targets(loads)}
        passed = terms.passed(reads((*terms.score, *terms.keep, *loads)), known)
        return Step("weigh", results, own, (("terms", (*fixed, *passed)),), ("BLOCK_N",), False)

    @property
    def sign(self) -> str:
        """Text of a number; negative, it flips the sign of queries: without score terms, maxima precede the scale."""
        return "1.0" if self.decode.spec.scores else "scale"

    @property
    def _rows(self) -> tuple[Statement, ...]:
        """The positions of a tile's rows, and the values that are loaded once for them."""
        scale = Statement("scale", "tl.maximum(tl.abs(scale), 1e-37)", label="-inf * 0 would be NaN")
        return (
            *(one for one in cached_heads.rows() if one.target not in _FOUND),
            *(() if self.decode.spec.scores else (scale,)),
            *self.decode.analysis.scaled,
            *self.decode.terms.loads("program"),
        )

    def _visit(self, before: tuple[Block, ...], *body: Block) -> tuple[Block, ...]:
        """The statements that loop over the tiles of a split that the rows see."""
        tile = (Statement("k_start", "i * BLOCK_N"), *body, Statement("at", "1", "+="))
        return self.decode.span.visit(*before, Loop("i", "first", "last", tile))

    def _partition(self, name: str, found: tuple[Block, ...], more: set[str], given: tuple[str, ...]) -> Partition:
        """The arguments of warps that need these statements and names."""
        parts = tuple(p for p in self.parts if p.name not in (*_SEQUENCES.values, "pages_ptr", "k_desc"))
        return partition(name, parts, reads(found) | more, ("sequences", *given), _FIXED, ())

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel."""
        spec, terms = dataclasses.replace(self.decode.spec, sink=False), self.decode.terms
        start = softmax.start(spec, "gl.full", "BLOCK_M", _LAYOUTS)
        scores = self._visit(
            self.step.packed,
            Statement("mixed", "(k_start < full_lo) | (k_start + BLOCK_N > full_hi)"),
            Statement("score", "multiply(at, q_quarters, q_rest, q_unit, k_scales, keys, SCORES, BLOCK_N, STAGES)"),
            self.step.call("mixed", ""),
        )
        added = "add_weighted(at, acc, k_start, lo, hi, keys, weights, BLOCK_N, STAGES, OUT, WORKER)"
        values = self._visit((), Statement("acc", added))
        copied = "copy_keys(at, k_start, b, kv_h, lo, hi, k_desc, pages_ptr, boxes, BLOCK_N, STAGES, PAGE, ROWS)"
        loads = self._visit((), Statement("", copied))
        found = "find_pages(pages_ptr, first * BLOCK_N, lo, hi, BLOCK_N, PAGE, gl.SliceLayout(1, BYTES))"
        pages = f"b + gl.full([BLOCK_N], 0, gl.int32, gl.SliceLayout(1, BYTES)) if pages_ptr is None else {found}"
        converted = "convert_tile(at, k_start, page, lo, hi, cache, keys, scales, BLOCK_N, STAGES, PAGE, BYTES)"
        conversions = self._visit((Statement("page", pages),), Statement("page", converted))
        own = needed(self._rows, reads((*start, *scores)))
        of_values, of_loads = (needed(self._rows, reads(visit)) for visit in (values, loads))
        queries = {"q_ptr", "q_stride_token", "q_stride_head", self.sign}
        buffers, stored = ("keys", "weights", "totals"), {"parts_ptr", "Hq", "DV"}
        of_k, of_v = ({f"{x}_scale_{part}" for part in ("ptr", "stride_sequence", "stride_head")} for x in "kv")
        read = {*queries, *stored, *of_k, "BY_HEAD"}
        work = self._partition("arguments", (*own, *start, *scores), read, ("queries", *buffers, "scales"))
        adding = self._partition("results", (*of_values, *values), {*stored, *of_v, "BY_HEAD"}, buffers)
        paged = {"pages_stride_sequence", "PAGE"}
        loading = self._partition("places", (*of_loads, *loads), {*paged, "ROWS"}, ("k_desc", "pages_ptr", "boxes"))
        read = {*paged, *of_k, *of_v, *_CACHE.values}
        given = ("k_desc", "pages_ptr", "keys", "scales")
        converting = self._partition("factors", (*of_loads, *conversions), read, given)
        blocks: dict[str, tuple[Block, ...]] = {
            "sequences": (_SEQUENCES,),
            "sequences_packed": (_SEQUENCES.packed,),
            "sequence": (PAGED.sequence(),),
            "found": (Statement(", ".join(_WORK), "find_work(sequences, GROUP, BLOCK_M)"),),
            "scored": (*self.step.unpacked, *self._keys, *terms.loads("step"), *terms.score),
            "masked": (*terms.loads("mask"), *visibility.masked(terms, ["inside[None, :]"])),
            "unseen": softmax.unseen(spec),
            "start": start,
            "scores": scores,
            "values": values,
            "loads": loads,
            "cache": (_CACHE.packed,),
            "cache_unpacked": (_CACHE,),
            "conversions": conversions,
        }
        roles = {"work": (work, own), "add": (adding, of_values)}
        roles |= {"load": (loading, of_loads), "convert": (converting, of_loads)}
        blocks["packed"] = tuple(taken.bundle.packed for taken, _ in roles.values())
        for name, (taken, opened) in roles.items():
            numbers, rows = numbers_first(terms, opened)
            blocks |= {f"{name}_unpacked": (taken.bundle, *numbers), f"{name}_rows": rows}
        texts = {f"{name}_takes": ", ".join(taken.taken) for name, (taken, _) in roles.items()} | {"sign": self.sign}
        grid = "(splits * runtime.cdiv(rows, block_m) * k.shape[2], sequences)"
        return Kernel("attend_split", self.parts, "decode/hopper_split.jinja", grid, self.step, blocks, texts)

    @property
    def _keys(self) -> tuple[Statement, ...]:
        """The positions of a tile's keys, and their scores times the scale if terms follow."""
        scaling = self.decode.analysis.scaling
        place = "k_start + gl.arange(0, BLOCK_N, gl.SliceLayout(0, score.type.layout))"
        return (
            Statement("k_pos", place, shape="[BLOCK_N]"),
            Statement("inside", "(k_pos >= lo) & (k_pos < hi)"),
            *((Statement("score", f"score{scaling}"),) if scaling else ()),
        )

    @property
    def imports(self) -> tuple[str, ...]:
        """The names that the file imports from kernels.py."""
        found = code_names(*self.kernel.blocks.values())
        return tuple(sorted(found & self.known | {"LOG2E", "partial_row_sums"}))


def build(decoding: Decode | None, known: frozenset[str]) -> DecodeHopper | None:
    """The kernel of a variant's decoding for Hopper GPUs, if it has one; `known` are the names that kernels.py defines.

    Heads that are not latent are bound by memory, which the portable kernel reads as fast. Not yet if new tokens are
    rotated as they are loaded, if an input is stored in pages like keys or summed up over tokens, or if the keys that
    a mask shows differ by row of a tile, so that the loading warp would have to know them row by row.
    """
    if decoding is None or not decoding.spec.latent or "hopper" not in decoding.spec.targets or decoding.spec.rope:
        return None
    if decoding.terms.paged or decoding.scans.each or decoding.span.by_row & {*decoding.span.parameters}:
        return None
    return DecodeHopper(decoding, known)
