# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/deepseek_mla.yaml
#   content hash  ceb794ac2bf4e8f3
#   text hash     31804f034edcc0ae
#   render with   attnforge render specs/deepseek_mla.yaml
"""Optional results of `attention` beside out and LSE; formulas and names are explained at the head of kernels.py.

largest     for each query head, the largest score that its softmax sees, in log2 units
key_sums    for each key and query head, the sum of its weights exp(score - lse) over the queries

measure     a tile of BLOCK_N keys of one query head; loops over tiles of BLOCK_M queries, as backward_dkv does
MAKES       which of the two a launch computes; None: both
"""

import torch

from . import runtime, tiles  # runtime first: its error explains a missing triton
from .launch import _attend

import triton
import triton.language as tl

from .kernels import LOG2E, batch_and_head, find_entry, load_rows, load_tile, query_tiles


def attend(q, k, v, entries, scale, max_logit, key_sums):
    """Out, LSE, then the largest logits and the sums of weights, each if it is wanted."""
    out, lse = _attend(q, k, v, entries, max(scale, 1e-37))
    makes = None if max_logit and key_sums else "largest" if max_logit else "key_sums"
    with torch.no_grad():
        largest, sums = _measure(lse, q, k, entries, max(scale, 1e-37), makes)
    return out, lse, *([largest] if max_logit else []), *([sums] if key_sums else [])


@runtime.Operator
def _measure(
    lse: torch.Tensor, q: torch.Tensor, k: torch.Tensor, entries: torch.Tensor | None, scale: float,
    makes: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    largest, key_sums = _results(lse, q, k, makes)
    if q.numel() == 0 or k.numel() == 0:
        return largest, key_sums
    cache = runtime.LaunchCache.of(
        "measure", lse, q, k, entries, makes,
    )  # fmt: skip
    q, k = cache.readable(q, k)
    parts = None

    def launch(block_m, block_n, warps, stages):
        nonlocal parts
        parts = lse.new_full((q.shape[0], q.shape[-2], runtime.cdiv(k.shape[1], block_n)), float("-inf"))
        runtime.launch(
            cache, measure, (block_m, block_n, makes), (q, k, lse, parts, key_sums, entries, float(scale)),
            grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], k.shape[1], block_n, q),
            from_shapes=lambda: dict(
                q_desc=runtime.tile_source(q, block_m, entries), k_desc=runtime.tile_source(k, block_n, entries),
                lse_desc=runtime.vector_source(lse, block_m if entries is None else None), q_total=q.shape[1],
                k_total=k.shape[1], Hq=q.shape[-2], BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=runtime.padded_width(q),
                PRECISION=runtime.precision(q), TILE_AXIS=runtime.tile_axis(k.shape[1], block_n), MAKES=makes,
                num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip

    runtime.launch_tuned(cache, tiles, "measure", launch, q, q)
    return (largest if makes == "key_sums" else parts.amax((0, 2)) / LOG2E.value), key_sums


def _results(lse, q, k, makes):
    """The results if no query sees a key: -inf as the largest logit, and no weight for any key."""
    largest = lse.new_full((0 if makes == "key_sums" else q.shape[-2],), float("-inf"))
    shape = q.shape[0], q.shape[2], k.shape[1]
    return largest, lse.new_zeros(0 if makes == "largest" else shape)


@_measure.register_fake
def _(lse, q, k, entries, scale, makes):
    return _results(lse, q, k, makes)


@triton.jit
def measure_tile(
    largest, mass, k_tile, q_start, queries, terms, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr, MAKES: tl.constexpr, mixed
):  # fmt: skip
    """Update each key's largest logit and the sum of its weights, `mass`, with one tile of queries."""
    q_desc, lse_desc, row_base, b, q_offset, h, q_len = queries
    q_begin, scale_log2, k_pos = terms
    # [BLOCK_M]
    row = q_start + tl.arange(0, BLOCK_M)
    q_pos = row + q_begin
    # [BLOCK_M, BLOCK_D]
    q_tile = load_tile(q_desc, b, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_D)
    score = tl.dot(k_tile, q_tile.T, input_precision=PRECISION)  # [BLOCK_N, BLOCK_M]
    logit = score * scale_log2  # [BLOCK_N, BLOCK_M]
    if mixed:
        keep = (row < q_len)[None, :]
        keep &= k_pos[:, None] <= q_pos[None, :]  # causal
        logit = tl.where(keep, logit, float("-inf"))
    if MAKES != "key_sums":
        largest = tl.maximum(largest, tl.max(logit, 1))
    if MAKES != "largest":
        # [BLOCK_M]
        lse = load_rows(lse_desc, row_base, q_start, row, 1, q_len)
        # past the last row it may be a neighbour's
        lse = tl.where(row < q_len, lse, float("inf"))
        mass += tl.sum(tl.exp2(logit - lse[None, :]), 1)
    return largest, mass


@triton.jit(do_not_specialize=["q_total", "k_total", "Hq"])
def measure(
    q_desc, k_desc, lse_desc, largest_ptr, key_sums_ptr, entries_ptr, scale, q_total, k_total, Hq,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
    TILE_AXIS: tl.constexpr, MAKES: tl.constexpr
):  # fmt: skip
    """Store the largest logit of one tile of keys of one head, and the sum of the weights of each key."""
    tile = tl.program_id(TILE_AXIS)
    b, h = batch_and_head(Hq, TILE_AXIS)
    k_start = tile * BLOCK_N
    q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
    if entries_ptr is not None:
        if k_start >= k_len:
            return
    q_begin = k_len - q_len if entries_ptr is None else tl.load(entries_ptr + 5 * b + 4)
    k_first = k_start
    k_last = tl.minimum(k_start + BLOCK_N, k_len) - 1
    # [BLOCK_N]
    k_pos = k_start + tl.arange(0, BLOCK_N)
    scale_log2 = scale * LOG2E

    # [BLOCK_N, BLOCK_D]
    k_tile = load_tile(k_desc, b, h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_D)
    # [BLOCK_N]
    largest = tl.full([BLOCK_N], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_N], tl.float32)
    row_base = (b.to(tl.int64) * Hq + h) * q_total + q_offset
    queries = (q_desc, lse_desc, row_base, b, q_offset, h, q_len)
    terms = (q_begin, scale_log2, k_pos)
    first, full_first, full_last, last = query_tiles(k_first, k_last, q_len, q_begin, BLOCK_M)
    for i in tl.range(first, last):
        q_start = i * BLOCK_M
        mixed = (i < full_first) | (i >= full_last)
        largest, mass = measure_tile(
            largest, mass, k_tile, q_start, queries, terms, BLOCK_M, BLOCK_D, PRECISION, MAKES, mixed=mixed
        )  # fmt: skip

    if MAKES != "key_sums":
        slot = (tl.cast(b, tl.int64) * Hq + h) * tl.num_programs(TILE_AXIS) + tile
        tl.store(largest_ptr + slot, tl.max(tl.where(k_pos < k_len, largest, float("-inf")), 0))
    if MAKES != "largest":
        tl.store(key_sums_ptr + (b.to(tl.int64) * Hq + h) * k_total + k_offset + k_pos, mass, mask=k_pos < k_len)
