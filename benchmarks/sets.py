"""What is measured for the record: which variants, compared with which peers, in which calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnforge.gpu import bench
from attnforge.gpu.calls import Sizes

HERE = Path(__file__).parent
LENGTHS, BETWEEN, SHORT = (1024, 4096, 16384), (512, 2048, 8192), (512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Set:
    """Variants that are measured with the same calls."""

    title: str
    specs: tuple[str, ...]
    peers: tuple[str, ...]
    sizes: tuple[Sizes, ...]
    backward: bool = True
    replays: bool = False  # GPU time only, without the host
    target: str = bench.BOTH  # the target whose kernels run


def tokens(head_dims: Sequence[int], lengths: Sequence[int] = LENGTHS) -> tuple[Sizes, ...]:
    """Calls with 16,384 tokens and 2,048 columns over all heads, in bf16."""
    return tuple(Sizes(16384 // t, t, t, 2048 // d, 2048 // d, d, d, "bf16") for d in head_dims for t in lengths)


def small(batch: int, lengths: Sequence[int], dtype: str) -> tuple[Sizes, ...]:
    """Calls with 16 heads of 64 columns."""
    return tuple(Sizes(batch, t, t, 16, 16, 64, 64, dtype) for t in lengths)


LIBRARIES = ("flex", "flex-flash", "sdpa-flash", "sdpa-cudnn", "fa4", "fla")
SETS = {
    "variants": Set(
        "Variants beside their peers",
        ("causal", "full", "llama3", "sliding_window", "alibi", "softcap", "llama3_documents", "packed_causal",
         "log_decay", "packed_log_decay"),
        LIBRARIES,
        tokens((64, 128)),
    ),
    "wide": Set("Heads of 256 columns", ("causal", "full", "softcap"), LIBRARIES, tokens((256,))),
    "lengths": Set("Lengths in between", ("causal", "full"), LIBRARIES, tokens((64, 128, 256), BETWEEN)),
    "grouped": Set(
        "Eight key heads for 32 query heads", ("causal", "sliding_window", "softcap", "alibi"), LIBRARIES,
        (Sizes(2, 8192, 8192, 32, 8, 128, 128, "bf16"),),
    ),
    "cross": Set(
        "Small problems", ("cross",), LIBRARIES, (Sizes(1, 512, 256, 16, 16, 64, 64, "bf16"),)
    ),
    "memory": Set("Memory compared with naive PyTorch", ("causal",), ("naive",), small(1, SHORT, "bf16")),
    "history": Set(
        "How attention got here", ("causal", "flash2_strided_k", "flash1", str(HERE / "specs" / "causal_late.yaml")),
        ("naive",), small(2, SHORT, "fp16"), replays=True, target="portable",
    ),
    "rope": Set("RoPE inside", ("rope",), LIBRARIES, small(2, SHORT, "fp16"), backward=False),
    "rope_replayed": Set("RoPE inside, GPU time only", ("rope",), LIBRARIES, small(2, SHORT, "fp16"), replays=True),
}  # fmt: skip
# variants whose forward kernels Nsight Compute profiles, and the call
PROFILED = ("flash1", "flash2_strided_k", "causal")
PROFILED_CALL = small(2, (4096,), "fp16")[0]
