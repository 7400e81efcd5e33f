"""Joins the partial results of splits in decoding: in the last program of a row's splits, or in a kernel."""

from __future__ import annotations

from collections.abc import Iterable

from ...paged import PAGED
from ...parameters import Function, Kernel, Parameter, jitted
from ...shared_parameters import SharedParameters
from ...statements import Block, Branch, Call, Comment, Statement

_LSE = (
    Parameter("lse_stride_sequence", "i32", "lse_strides[0]"),
    Parameter("lse_stride_head", "i32", "lse_strides[1]"),
)
_CHUNK = Parameter("CHUNK", "constexpr", "CHUNK")
_SIZES = ("tokens", "Hq", "splits")


def build(
    shared: SharedParameters, sequences: tuple[Parameter, ...], sizes: tuple[Parameter, ...], overlap: Parameter
) -> Kernel:
    """The kernel that joins; it takes `sequences`, `sizes` and `overlap` like the one that attends."""
    return Kernel(
        "join_splits",
        (
            Parameter("parts_ptr", "*fp32", "parts"),
            *sequences,
            *_made(),
            *shared.sunk(),
            *_LSE,
            *sizes,
            *shared.constants("DV"),
            _CHUNK,
            Parameter("CHUNKS", "constexpr", "chunks"),
            Parameter("COLUMNS", "constexpr", "columns"),
            Parameter("TOGETHER", "constexpr", "together"),
            overlap,
        ),
        "decode/join.jinja",
        "(longest * (runtime.padded_width(v) // columns), q.shape[1] // together, sequences)",
        blocks={
            "sequence": (PAGED.sequence(),),
            "cleared": (_clear("tl.num_programs(2)", "i", "longest", "h", "there", "column"),),
            "places": (
                Statement("out_row", "(token + i).to(tl.int64) * Hq + h"),
                Statement(
                    "lse_row", "tl.cast(b, tl.int64) * lse_stride_sequence + h.to(tl.int64) * lse_stride_head + own_row"
                ),
            ),
            "join": (_join(shared, "join_parts", "column", "CHUNKS"),),
        },
    )


def taken(shared: SharedParameters) -> tuple[Parameter, ...]:
    """The parameters of a split's kernel for joining, as its program may be the last one of its rows."""
    return (*_made(), *shared.sunk(), *_LSE)


def counted() -> tuple[Parameter, ...]:
    """The counters of such programs, which a launch passes last, and the constants for joining."""
    return (
        Parameter("counts_ptr", "*i32", "counts", written=True),
        _CHUNK,
        Parameter("JOINED", "constexpr", "joined"),
        Parameter("COLUMNS", "constexpr", "at_a_time"),
    )


def left(split: Kernel, shared: SharedParameters) -> tuple[Parameter, ...]:
    """The parameters of `split` that remain if its programs do not join."""
    joining = {*taken(shared), *counted()}
    return tuple(p for p in split.parts if p not in joining)


def blocks(shared: SharedParameters, heads: str) -> dict[str, tuple[Block, ...]]:
    """The statements with which such a program joins; `heads` is text of its number of query heads."""
    first, sequence = "tl.arange(0, JOINED)", ("b", "kv_h", "token", "q_len", "cu_seqlens_q_ptr")
    given = (*sequence, *(p.name for p in _LSE), "Hq", heads, "JOINED")
    cleared = (f"kv_h * {heads} + {first}", f"{first} < {heads}", "tl.arange(0, BLOCK_DV)[None, :]")
    return {
        "cleared": (_clear("tl.num_programs(1)", "0", "1", *cleared),),
        "joined": (Call("there, h, out_row, lse_row", "joined_rows", given),),
        "nothing": (_nothing(shared),),
        "join": (_join(shared, "join_few", "first_column + tl.arange(0, COLUMNS)[None, :]"),),
    }


def functions(shared: SharedParameters, bounded: bool) -> tuple[Function, ...]:
    """The functions that both kernels call; if the keys that a row sees are `bounded`, its first split may be any."""
    about = _start(shared.spec.sink), _sunk(shared)
    found = jitted("decode/joined", "find_splits", "count_slots", "joined_rows", "clear_rows", "store_rows")
    with_sinks = (Function("decode/joined.jinja", name, about) for name in ("store_nothing", "join_parts"))
    return (*found, *with_sinks, Function("decode/joined.jinja", "join_few", (*about, bounded)))


def _made() -> Iterable[Parameter]:
    """The parameters of the results."""
    yield Parameter("out_ptr", "*T", "out", written=True)
    yield Parameter("lse_ptr", "*fp32", "lse", written=True)


def _sunk(shared: SharedParameters) -> list[str]:
    return [p.name for p in shared.sunk()]


def _clear(sequences: str, first: str, step: str, h: str, there: str, column: str) -> Call:
    """The statement that clears rows that belong to no sequence: the `first` and every `step`-th after it."""
    bounds = ("cu_seqlens_q_ptr", "b", sequences, "token", "q_len", "tokens", first, step)
    return Call("", "clear_rows", ("out_ptr", "lse_ptr", "lse_stride_head", *bounds, h, there, column, "Hq", "DV"))


def _nothing(shared: SharedParameters) -> Call:
    """The statement that stores the results of such rows if they see no key."""
    rows = ("h", "there", "out_row", "lse_row", "tl.arange(0, BLOCK_DV)[None, :]", "DV")
    return Call("", "store_nothing", ("out_ptr", "lse_ptr", *_sunk(shared), *rows))


def _join(shared: SharedParameters, name: str, column: str, *chunks: str) -> Call:
    """The statement that joins the partial results of some rows with a function of this name, `chunks` at a time."""
    given = ("parts_ptr", "out_ptr", "lse_ptr", *_sunk(shared), "h", "there", "out_row", "lse_row", column)
    return Call("", name, (*given, "head", "first_split", "split_end", *_SIZES, "DV", "CHUNK", *chunks))


def _start(sink: bool) -> tuple[Block, ...]:
    """The statements that initialise the largest LSE and the sum of weights before the first part, with the sink's."""
    start: tuple[Block, ...] = (
        Statement("m", 'tl.full([ROWS], float("-inf"), tl.float32)'),
        Statement("l", "tl.full([ROWS], 0.0, tl.float32)"),
    )
    if not sink:
        return start
    joined = (
        Comment("only once, here: no split has seen it"),
        Statement("m", "tl.load(sinks_ptr + h.to(tl.int64) * sinks_stride_head).to(tl.float32) * LOG2E"),
        Statement("l", 'tl.where(m == float("-inf"), 0.0, 1.0)'),
    )
    return (*start, Branch("sinks_ptr is not None", joined))
