"""The kernels of running sums over per-token values in a cache: over the keys of a stretch, and over stretches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ....expressions.inputs import Input
from ....language.spec import Spec
from ... import running_sums
from ...cached_range import CachedRange
from ...paged import PAGED
from ...parameters import Function, Kernel, Parameter, jitted
from ...reach import EVERYTHING
from ...statements import Statement

_AXES = {"page": ("batch",), "token": ("token",), "head": ("head", "kv_head")}
_HEADS = {"head": "q.shape[-2]", "kv_head": "k.shape[-2]"}
MOST_HEADS = 16  # most heads that a program sums up


@dataclass(frozen=True)
class Scan:
    """The running sums of one input."""

    spec: Spec  # as decoding kernels see it
    given: Input
    seen: CachedRange
    sequences: tuple[Parameter, ...]
    overlap: Parameter

    @property
    def heads(self) -> str:
        """The host's text of the number of heads that have sums."""
        return next((_HEADS[kind] for kind in self.given.kinds if kind in _HEADS), "1")

    @property
    def begin(self) -> str:
        """The host's name of the start of the sums in the workspace, in steps of 16 values."""
        return f"{self.given.name}_begin"

    @property
    def end(self) -> str:
        """The host's text of their end there."""
        return f"{self.begin} + sequences * {self.heads} * room // 16"

    @property
    def places(self) -> tuple[Parameter, ...]:
        """The parameters that locate these sums for a kernel that reads sums of several inputs."""
        return self._places(f"{self.given.name}_sums_begin", self.given.name)

    def _places(self, begin: str, name: str) -> tuple[Parameter, ...]:
        return (
            Parameter(begin, "i32", self.begin),
            Parameter(f"{name}_stride_sequence", "i32", f"room * {self.heads}"),
            Parameter(f"{name}_stride_head", "i32", "room"),
        )

    @property
    def _sums(self) -> Iterable[Parameter]:
        """The parameters of both kernels for sums and sequences."""
        yield Parameter("sums_ptr", "*fp32", "parts", written=True)
        yield from self._places("sums_begin", "sums")
        yield from (Parameter("tokens", "i32", "q.shape[0]"), Parameter("longest", "i32", "longest"))
        yield Parameter("max_seqlen_k", "i32", "max_seqlen_k", own=True)
        yield Parameter("stretches", "i32", "stretches")
        if "reach" in self.seen.summed:
            yield Parameter("reach", "i32", "reach", own=True)

    @property
    def _first(self) -> Statement:
        """The statement that finds the first key that is summed up."""
        return Statement("first_key", self.seen.summed)

    @cached_property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """The kernel that sums up keys, and the one that sums up stretches."""
        sequence = (PAGED.sequence(), self._first)
        stretches = Kernel(
            "sum_stretches",
            (*self.sequences, *self._sums, self.overlap),
            "decode/sum_stretches.jinja",
            f"({self.heads}, sequences)",
            blocks={"sequence": sequence},
            texts={"warps": "4"},
        )
        return self._keys(sequence), stretches

    def _keys(self, sequence: tuple[Statement, ...]) -> Kernel:
        x, kinds = self.given.name, self.given.kinds
        places = {axis: [i for i, kind in enumerate(kinds) if kind in own] for axis, own in _AXES.items()}
        # an input that all sequences share is not in pages, and begins with the first key of each sequence
        paged = PAGED.holds(self.given)
        stride = "0 if page_table is None else page_table.stride(0)"
        return Kernel(
            "sum_keys",
            (
                Parameter("x_ptr", "*fp32", x),
                *self.sequences,
                Parameter("pages_ptr", "*i32", "page_table" if paged else "None"),
                Parameter("k_starts_ptr", "*i32", "k_starts" if paged else "None"),
                *self._sums,
                *(
                    Parameter(f"x_stride_{axis}", "i32", f"runtime.stride({x}, {own[0]})" if own else "0")
                    for axis, own in places.items()
                ),
                Parameter("pages_stride_sequence", "i32", stride if paged else "0"),
                Parameter("k_places", "i32", "k.shape[1]"),
                Parameter("PAGE", "constexpr", "1 if page_table is None else k.shape[1]" if paged else "1"),
                Parameter("HEADS", "constexpr", self.heads),
                Parameter("BLOCK_H", "constexpr", f"min(runtime.power_of_2({self.heads}), {MOST_HEADS})"),
                Parameter("RESET", "constexpr", running_sums.reset(self.spec, self.given)),
                self.overlap,
            ),
            "decode/sum_keys.jinja",
            f"(stretches * runtime.cdiv({self.heads}, {MOST_HEADS}), sequences)",
            blocks={"sequence": (*sequence, PAGED.first_key())},
            texts={"warps": "4"},
        )


@dataclass(frozen=True)
class Scans:
    """The running sums of all inputs that have some."""

    each: tuple[Scan, ...]

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that a file holds: those of one input serve all."""
        return self.each[0].kernels if self.each else ()

    @property
    def reach(self) -> str:
        """The host's text of how many keys before the first new token are summed up."""
        return next(("reach" for one in self.each if "reach" in one.seen.summed), EVERYTHING)

    @property
    def begins(self) -> tuple[tuple[str, str], ...]:
        """The host's names and texts of the starts of sums: after the partial results of splits, one after another."""
        ends = ["runtime.cdiv(size_of_parts(q, v, splits), 16)", *(one.end for one in self.each)]
        return tuple((one.begin, end) for one, end in zip(self.each, ends, strict=False))

    @property
    def launched(self) -> tuple[tuple[str, Kernel], ...]:
        """All kernels that a call launches, with the host's names of the values that it passes to them."""
        return tuple((f"{one.given.name}_{kernel.name}", kernel) for one in self.each for kernel in one.kernels)

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that kernels call for running sums."""
        found = ("find_sums", "load_summed", "joined", "sum_before", "load_sums", "find_begin")
        return jitted("decode/sum_functions", *found) if self.each else ()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of a kernel that reads running sums."""
        if not self.each:
            return ()
        places = (parameter for one in self.each for parameter in one.places)
        return (Parameter("sums_ptr", "*fp32", "parts"), *places, Parameter("stretches", "i32", "stretches"))

    @property
    def first(self) -> tuple[Statement, ...]:
        """The statement that finds the first stretch of a sequence that has room for sums."""
        firsts = (one.seen.summed for one in self.each[:1])
        return tuple(Statement("first_stretch", key if key == "0" else f"{key} // STRETCH") for key in firsts)

    def where_summed(self, count: str) -> str:
        """Text of a count that is 0 if a tile's keys have no sums."""
        summed = "(k_start < k_len) & (k_start // STRETCH >= first_stretch)"
        return f"tl.where({summed}, {count}, 0)" if self.each else count

    @property
    def imports(self) -> frozenset[str]:
        """The names that their kernels import from kernels.py."""
        return frozenset({"later", "last_of"} if self.each else ())


def build(spec: Spec, seen: CachedRange, sequences: tuple[Parameter, ...], overlap: Parameter) -> Scans:
    """The running sums of a spec's inputs; kernels take `sequences` and `overlap` like the one that attends."""
    return Scans(tuple(Scan(spec, given, seen, sequences, overlap) for given in spec.inputs if given.scan))
