"""The layout of rows in the tensors of a call: a batch of equal lengths, or sequences packed one after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ..expressions.inputs import HEAD_AXES, ROW_AXES, Axis, Input
from ..language.spec import Spec
from .parameters import Parameter, jitted
from .sides import BLOCKS, SIDES, Side
from .statements import Block, Branch, Statement


@dataclass(frozen=True)
class Dense:
    """Tensors with an axis of batch entries: (B, T, H, D)."""

    entry = "batch entry"  # a program handles one of these
    lead = ("b",)  # the leading indices of a head's rows, besides the head
    outer = ("batch", "token", "head")  # the axes before the columns
    longest = ("q.shape[1]", "k.shape[1]")  # texts of how many queries and keys the longest sequence has
    functions = jitted("portable/loads", "find_entry", "load_tile")  # that its texts call
    cut = False  # whether sequences share an axis, so that a tile may reach into the next one
    cuts = ()  # the tensors that say where sequences begin
    entries: ClassVar[tuple[str, ...]] = ("entries",)  # the tensor that says it instead if a call leaves rows out
    told: ClassVar[tuple[str, ...]] = ("entries_ptr",)  # the same in kernels
    limits = ()  # the numbers that say how long sequences are
    sequences = "q.shape[0]"  # text of the number of sequences
    heads = "q.shape[0], q.shape[2]"  # text of the numbers of batch entries and heads
    counted = ("q", "k")  # the arguments that determine the numbers of parts of queries and of keys
    # text of the number of rows of a tensor that holds whole tiles for each sequence and head
    tiled = "q.shape[0] * q.shape[2] * runtime.cdiv(q.shape[1], block_m) * block_m"
    nothing = "out.numel() == 0 or k.numel() == 0"  # text of whether no query sees a key
    # text of whether descriptors can read values of queries by position: from multiples of 16 bytes on
    level = "entries is None and (k.shape[1] - q.shape[1]) % 8 == 0"
    left_out = "entries"  # the argument that, if given, leaves rows out: descriptors cannot mask rows
    whole = "entries is None"  # text of whether no row is left out
    # text of the position of the first query
    begin = "k_len - q_len if entries_ptr is None else tl.load(entries_ptr + 5 * b + 4)"

    # for the interface: what callers read and pass
    axes = ("batch", "tokens", "heads", "head size")  # of q, k and v
    shapes = ("q (B, Tq, Hq, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv); out is (B, Tq, Hq, Dv).",)  # lines
    lse = "(B, Hq, Tq)"
    totals = ("Tq", "Tk")  # the numbers of queries and of keys
    keywords = ("k_lens", "k_starts", "q_start")  # that say where sequences begin and how long they are

    head_offset = "(tl.cast(b, tl.int64) * stride_batch + tl.cast(h, tl.int64) * stride_head)"

    def leading(self, entry: str = "b", own: str = "h") -> str:
        """Text of the leading indices of a head's rows: `entry` for the batch entry, then `own` for the head."""
        return f"{entry}, {own}"

    def drawn_from(self, row: str) -> str:
        """Text of the row number from which dropout draws for a row."""
        return f"{row} + drawn"

    def tile(self, x: str, side: Side, head: str, rows: str, columns: str) -> str:
        """Text that loads a tile of queries or keys, as [rows, columns]."""
        ends = f"{side}_offset + {side}_start, {side}_offset + {side}_len"
        return f"load_tile({x}_desc, b, {head}, {ends}, {rows}, {columns})"

    def coordinates(self, side: Side, head: str, start: str) -> str:
        """Text of a descriptor's coordinates for a tile; `start` is its first row, counted within the sequence."""
        return f"b, {head}, {side}_offset + {start}, 0"

    def found(self, own: str = "") -> tuple[Statement, ...]:
        """The statements that find a sequence."""
        return (Statement("q_offset, q_len, k_offset, k_len", "find_entry(entries_ptr, b, q_total, k_total)"),)

    def tokens(self) -> tuple[Statement, ...]:
        """The statements with which a program that sums along tokens locates those of its head."""
        first = f"{self.offset('k', 'x', 'token')} + h.to(tl.int64) * x_stride_head"
        return (
            Statement("_, _, k_offset, count", "find_entry(entries_ptr, b, 0, k_total)"),
            Statement("x_ptr", first, "+="),
        )

    def sums(self) -> tuple[Statement, ...]:
        """The statements with which it locates their sums, in four parts of `k_rows` values."""
        place = "tl.program_id(0).to(tl.int64) * 4 * k_total"
        return Statement("k_rows", "k_total"), Statement("sums_ptr", place, "+=")

    def dsums(self) -> tuple[Statement, ...]:
        """The statements with which it locates the gradients of their sums, and their own gradients."""
        place = "tl.program_id(0).to(tl.int64) * k_total"
        return Statement("dsums_ptr", place, "+="), Statement("dx_ptr", f"{place} + k_offset", "+=")

    def token_sizes(self, sums: str) -> Iterator[Parameter]:
        """The parameters that give it the number of tokens; `sums` is the host's name of the sums or their gradient."""
        yield Parameter("entries_ptr", "*i32", "entries", absent=True)
        yield Parameter("k_total", "i32", "x.shape[-1]")

    def rows(self, side: Side) -> str:
        """Text of the index of a sequence's first row in out, dq, dk and dv."""
        return f"(b.to(tl.int64) * {side}_total + {side}_offset)"

    def ahead(self, side: Side, stride: str, own: bool = False) -> str:
        """Text of the offset of a sequence's rows from the head's first; `own`: in one of the package's own tensors."""
        return "" if own else f"tl.cast({side}_offset, tl.int64) * {stride}"

    def offset(self, side: Side, x: str, axis: str) -> str:
        """Text of a sequence's offset from a tensor's first value; `axis` is the tensor's name for its axis of rows."""
        return f"b.to(tl.int64) * {x}_stride_batch + {self.ahead(side, f'{x}_stride_{axis}')}"

    def beyond(self, side: Side) -> tuple[Block, ...]:
        """The statements that end programs whose tile lies past the end of their sequence."""
        return (Branch("entries_ptr is not None", _beyond(side)),)

    def reaches(self, side: Side) -> str:
        """Text of whether a descriptor reads rows behind a tile's sequence."""
        return f"entries_ptr is not None and {_reaches(side)}"

    def arrival(self, barriers: str) -> str:
        """Text of the barrier for the arrival of such tiles, made by `barriers`."""
        return f"() if entries_ptr is None else {barriers}"

    @property
    def head_rows(self) -> str:
        """Text of the index of a head's first row in lse and delta, from which descriptors can read."""
        return "(b.to(tl.int64) * Hq + h) * q_total + q_offset"

    @property
    def tiled_rows(self) -> str:
        """Text of the index of a head's first row in a tensor that has whole tiles for each sequence."""
        return "(b.to(tl.int64) * Hq + h) * tl.cdiv(q_total, BLOCK_M) * BLOCK_M"

    def head_tokens(self, given: Input) -> str:
        """Text of the index of a head's first token in an input's gradient."""
        return "(b.to(tl.int64) * Hq + h) * k_total" if given.scan else self.head_keys

    @property
    def head_keys(self) -> str:
        """Text of the index of a head's first key in a tensor with a value for each key and query head."""
        return "(b.to(tl.int64) * Hq + h) * k_total + k_offset"

    @property
    def head_queries(self) -> str:
        """Text of the index of a head's first query in an input's gradient."""
        return "row_base"

    def place(self, side: Side) -> tuple[str, ...]:
        """The names that a step along one side needs to locate that side's rows."""
        return "b", f"{side}_offset"

    def kept(self, given: Input) -> tuple[Axis, ...]:
        """The axes of an input as they are stored."""
        return given.axes

    def summed(self, given: Input) -> tuple[Axis, ...]:
        """The axes of an input's running sums, batch included: entries that share values may cover different tokens."""
        return given.axes if "batch" in given.kinds else (Axis("batch"), *given.axes)

    def sizes(self) -> Iterator[Parameter]:
        """The parameters that give kernels the lengths."""
        yield Parameter("entries_ptr", "*i32", "entries", absent=True)
        yield Parameter("q_total", "i32", "q.shape[1]")
        yield Parameter("k_total", "i32", "k.shape[1]")

    def aligned(self) -> Iterator[Parameter]:
        """The parameters that give kernels the beginnings of heads in the LSE and delta."""
        yield from ()


@dataclass(frozen=True)
class Packed:
    """Tensors whose sequences share the axis of rows, cut by `cu_seqlens`: (N, H, D)."""

    entry = "sequence"
    lead = ()
    outer = ("token", "head")
    longest = limits = ("max_seqlen_q", "max_seqlen_k")
    functions = (*jitted("portable/loads", "find_rows", "load_tile"), *jitted("portable/stores", "clear_rows"))
    cut = True
    cuts = ("cu_seqlens_q", "cu_seqlens_k")
    entries = told = ()
    sequences = "(cu_seqlens_q.shape[0] - 1)"
    heads = "q.shape[1]"
    counted = ("q", "cu_seqlens_q", *longest)
    tiled = "q.shape[1] * (q.shape[0] // block_m + cu_seqlens_q.shape[0] - 1) * block_m"
    nothing = "0 in (out.numel(), k.numel(), max_seqlen_q, max_seqlen_k, cu_seqlens_q.shape[0] - 1)"
    level = "cu_seqlens_q.data_ptr() == cu_seqlens_k.data_ptr()"
    left_out = whole = ""
    begin = "k_len - q_len"

    axes = ("tokens", "heads", "head size")
    shapes = (
        "q (Nq, Hq, D), k (Nk, Hkv, D), v (Nk, Hkv, Dv) hold all sequences, one after the other; out is (Nq, Hq, Dv).",
        "Rows of no sequence, such as those after the last one, are 0 in out and in gradients.",
    )
    lse = "(Hq, Nq)"
    totals = ("Nq", "Nk")
    keywords = ("cu_seqlens", "max_seqlen", *cuts, *limits)

    head_offset = "tl.cast(h, tl.int64) * stride_head"

    def leading(self, entry: str = "b", own: str = "h") -> str:
        """Text of the leading indices of a head's rows: `entry` for the batch entry, then `own` for the head."""
        return own

    def drawn_from(self, row: str) -> str:
        """Text of the row number from which dropout draws for a row."""
        return row

    def tile(self, x: str, side: Side, head: str, rows: str, columns: str) -> str:
        """Text that loads a tile of queries or keys, as [rows, columns]."""
        ends = f"{side}_offset + {side}_start, {side}_offset + {side}_len"
        return f"load_tile({x}_desc, {head}, {ends}, {rows}, {columns})"

    def coordinates(self, side: Side, head: str, start: str) -> str:
        """Text of a descriptor's coordinates for a tile; `start` is its first row, counted within the sequence."""
        return f"{head}, {side}_offset + {start}, 0"

    def found(self, own: str = "") -> tuple[Statement, ...]:
        """The statements that find a sequence; `own`: the sides for which kernels use the package's own vectors."""
        found = []
        for side in SIDES:
            rows = f"find_rows(cu_seqlens_{side}_ptr, b, {side}_total)"
            found.append(Statement(f"{side}_offset, {side}_end", rows))
            found.append(Statement(f"{side}_len", f"tl.minimum({side}_end - {side}_offset, max_seqlen_{side})"))
            if side in own:
                found.append(Statement(f"{side}_aligned", self.boundary(f"{side}_offset")))
        return tuple(found)

    def tokens(self) -> tuple[Statement, ...]:
        """The statements with which a program that sums along tokens locates those of its head."""
        first = "h.to(tl.int64) * x_stride_head + offset.to(tl.int64) * x_stride_token"
        return (
            Statement("offset, past", "find_rows(cu_seqlens_ptr, b, k_total)"),
            Statement("count", "past - offset"),
            Statement("aligned", self.boundary("offset")),
            Statement("x_ptr", first, "+="),
        )

    def sums(self) -> tuple[Statement, ...]:
        """The statements with which it locates their sums, in four parts of `k_rows` values."""
        return (Statement("sums_ptr", "h.to(tl.int64) * 4 * k_rows + aligned", "+="),)

    def dsums(self) -> tuple[Statement, ...]:
        """The statements with which it locates the gradients of their sums, and their own gradients."""
        places = {"dsums_ptr": "h.to(tl.int64) * k_rows + aligned", "dx_ptr": "h.to(tl.int64) * k_total + offset"}
        return tuple(Statement(ptr, place, "+=") for ptr, place in places.items())

    def token_sizes(self, sums: str) -> Iterator[Parameter]:
        """The parameters that give it the number of tokens and the beginnings of sequences."""
        yield Parameter("cu_seqlens_ptr", "*i32", "cu_seqlens_k")
        yield Parameter("k_total", "i32", "x.shape[-1]")
        yield Parameter("k_rows", "i32", f"{sums}.shape[-1]")

    @staticmethod
    def boundary(offset: str) -> str:
        """Text of where a sequence begins in the package's own vectors: descriptors read from multiples of 4."""
        return f"({offset} // 4 + b) * 4"

    def rows(self, side: Side) -> str:
        """Text of the index of a sequence's first row in out, dq, dk and dv."""
        return f"{side}_offset.to(tl.int64)"

    def ahead(self, side: Side, stride: str, own: bool = False) -> str:
        """Text of the offset of a sequence's rows from the head's first; `own`: in one of the package's own tensors."""
        return f"{side}_{'aligned' if own else 'offset'}.to(tl.int64) * {stride}"

    def offset(self, side: Side, x: str, axis: str) -> str:
        """Text of a sequence's offset from a tensor's first value; `axis` is the tensor's name for its axis of rows."""
        return self.ahead(side, f"{x}_stride_{axis}")

    def beyond(self, side: Side) -> tuple[Block, ...]:
        """The statements that end programs whose tile lies past the end of their sequence."""
        return _beyond(side)

    def reaches(self, side: Side) -> str:
        """Text of whether a descriptor reads rows behind a tile's sequence."""
        return _reaches(side)

    def arrival(self, barriers: str) -> str:
        """Text of the barrier for the arrival of such tiles, made by `barriers`."""
        return barriers

    @property
    def head_rows(self) -> str:
        """Text of the index of a head's first row in lse and delta, from which descriptors can read."""
        return "tl.cast(h, tl.int64) * q_rows + q_aligned"

    @property
    def tiled_rows(self) -> str:
        """Text of the index of a head's first row in a tensor that has whole tiles for each sequence."""
        return "(tl.cast(h, tl.int64) * (q_total // BLOCK_M + sequences) + q_offset // BLOCK_M + b) * BLOCK_M"

    def head_tokens(self, given: Input) -> str:
        """Text of the index of a head's first token in an input's gradient."""
        return "tl.cast(h, tl.int64) * k_rows + k_aligned" if given.scan else self.head_keys

    @property
    def head_keys(self) -> str:
        """Text of the index of a head's first key in a tensor with a value for each key and query head."""
        return "tl.cast(h, tl.int64) * k_total + k_offset"

    @property
    def head_queries(self) -> str:
        """Text of the index of a head's first query in an input's gradient."""
        return "tl.cast(h, tl.int64) * q_total + q_offset"

    def place(self, side: Side) -> tuple[str, ...]:
        """The names that a step along one side needs to locate that side's rows."""
        return (f"{side}_offset",)

    def kept(self, given: Input) -> tuple[Axis, ...]:
        """The axes of an input as they are stored: the rows of all sequences share one axis, without a batch axis."""
        return tuple(axis for axis in given.axes if axis.kind != "batch") if given.rows else given.axes

    def summed(self, given: Input) -> tuple[Axis, ...]:
        """The axes of an input's running sums."""
        return self.kept(given)

    def sizes(self) -> Iterator[Parameter]:
        """The parameters that give kernels the lengths."""
        yield Parameter("cu_seqlens_q_ptr", "*i32", "cu_seqlens_q")
        yield Parameter("cu_seqlens_k_ptr", "*i32", "cu_seqlens_k")
        for side, longest in zip(SIDES, self.longest, strict=True):
            yield Parameter(f"{side}_total", "i32", f"{side}.shape[0]")
            yield Parameter(longest, "i32", longest)

    def aligned(self) -> Iterator[Parameter]:
        """The numbers of sequences and of a head's rows in the LSE and delta, where each begins at a multiple of 4."""
        yield Parameter("sequences", "i32", "cu_seqlens_q.shape[0] - 1")
        yield Parameter("q_rows", "i32", "lse.shape[-1]")


def _reaches(side: Side) -> str:
    return f"{side}_start + {BLOCKS[side]} > {side}_len"


def _beyond(side: Side) -> tuple[Block, ...]:
    return (Branch(f"{side}_start >= {side}_len", (Statement("", "return"),)),)


Storage = Dense | Packed
STORAGES: dict[bool, Storage] = {False: Dense(), True: Packed()}
"""The storages, by whether a spec's sequences are packed."""


def of(spec: Spec) -> Storage:
    """The storage that a spec asks for."""
    return STORAGES[spec.packed]


def broad_axes(given: Input, spec: Spec) -> tuple[int, ...]:
    """Axes along which a size of 1 broadcasts: all that terms need not index, except rows of packed sequences."""
    stored = of(spec)
    axes = stored.kept(given)
    missing = len(given.axes) - len(axes)
    rows = ROW_AXES if stored.cut else ()
    return tuple(i for i, axis in enumerate(axes) if axis.kind not in rows and i + missing not in given.written)


def seen_axes(given: Input, spec: Spec) -> tuple[Axis, ...]:
    """The axes of an input as kernels see it: packed sequences have no batch axis, and a scan puts the tokens last."""
    if not given.scan:
        return of(spec).kept(given)
    return tuple(sorted(of(spec).summed(given), key=lambda a: (*HEAD_AXES, "token").index(a.kind)))
