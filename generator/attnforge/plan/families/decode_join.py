"""The kernel that joins the parts which splits of keys give to the rows of decoding."""

from __future__ import annotations

from ..paged import PAGED
from ..parameters import Kernel, Parameter
from ..shared_parameters import SharedParameters
from ..statements import Block, Branch, Comment, Statement


def build(
    shared: SharedParameters, sequences: tuple[Parameter, ...], sizes: tuple[Parameter, ...], overlap: Parameter
) -> Kernel:
    """The kernel; it takes `sequences`, `sizes` and `overlap` as the one that attends does."""
    return Kernel(
        "join_splits",
        (
            Parameter("parts_ptr", "*fp32", "parts"),
            *sequences,
            Parameter("out_ptr", "*T", "out", written=True),
            Parameter("lse_ptr", "*fp32", "lse", written=True),
            *shared.sunk(),
            Parameter("lse_stride_sequence", "i32", "lse_strides[0]"),
            Parameter("lse_stride_head", "i32", "lse_strides[1]"),
            *sizes,
            *shared.constants("DV"),
            Parameter("CHUNK", "constexpr", "CHUNK"),
            Parameter("CHUNKS", "constexpr", "chunks"),
            Parameter("COLUMNS", "constexpr", "columns"),
            Parameter("TOGETHER", "constexpr", "together"),
            overlap,
        ),
        "decode/join.jinja",
        "(longest * (runtime.padded_width(v) // columns), q.shape[1] // together, sequences)",
        blocks={"sequence": (PAGED.sequence(),), "start": _start(shared.spec.sink)},
    )


def _start(sink: bool) -> tuple[Block, ...]:
    """The statements that make the largest LSE and the sum of weights before the first part: those of the sink."""
    start: tuple[Block, ...] = (
        Statement("m", 'tl.full([TOGETHER], float("-inf"), tl.float32)'),
        Statement("l", "tl.full([TOGETHER], 0.0, tl.float32)"),
    )
    if not sink:
        return start
    joined = (
        Comment("once, here: no split has seen it"),
        Statement("m", "tl.load(sinks_ptr + h.to(tl.int64) * sinks_stride_head).to(tl.float32) * LOG2E"),
        Statement("l", 'tl.where(m == float("-inf"), 0.0, 1.0)'),
    )
    return (*start, Branch("sinks_ptr is not None", joined))
