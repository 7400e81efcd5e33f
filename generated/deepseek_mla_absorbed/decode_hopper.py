# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/deepseek_mla_absorbed.yaml
#   content hash  104fe782f07234ba
#   text hash     20c3dc621ead6d5f
#   render with   attnforge render specs/deepseek_mla_absorbed.yaml
"""`attend_split` of decode_kernels.py for latent heads on Hopper GPUs, in Gluon; its header has the other names.

Keys have 576 columns, of which the first 512 are also the values. A program has a tile of BLOCK_M = 64 rows. One warp,
or four for float8, loads tiles of BLOCK_N keys, and three workers of four warps each divide the work on a tile:

    load_keys     waits until a half of a stage is free, then has a half of the next tile of keys copied into it
    convert_keys  the same for float8: loads keys to registers and stores them as float16, the type of all products then
    score_keys    the product for the scores of all rows, and their weights
    add_values    two workers, for 256 columns of values each: the product that adds the weighted values of a tile

So one tile is scored while the values of the previous tile are added up. A half of a stage is ready when all its bytes
have arrived, and free when the worker whose values it holds is done with it; by then it has been scored. Weights
alternate between two tiles; with each come the factors that rescale earlier sums, and at the end those that normalise
them.

Copies are boxes of ROWS keys by 64 columns, each within one page: PAGE is a multiple of ROWS, unless there is only one
page. Boxes of keys that no row sees are read from page -1, which gives zeros. Keys outside [lo, hi) that are copied
along with visible ones may hold anything: their scores are masked, and their values cleared. Rows of float8 are loaded
one by one, each from its own page; rows outside [lo, hi) are 0.

Tensors in shared memory
    q_buffer        [2, BLOCK_M, 256]: columns 0 to 511 of the queries; the rest stay in registers, q_rest, and so do
                    the last 128 of these, unless keys are float8
    k_buffer        [2 * STAGES, BLOCK_N, 256]: columns 0 to 511 of keys, one half of them per half of a stage
    rest_buffer     [STAGES, BLOCK_N, 64]: the remaining columns, which arrive with the first half
    k_boxes         k_buffer as copies fill it, [8 * BOXES, 1, 1, ROWS, 64]: all boxes of 64 columns, then the next
    rest_boxes      rest_buffer likewise, [BOXES, 1, 1, ROWS, 64]
    p_buffer        [2, BLOCK_M, BLOCK_N]: weights
    shrinks         [2, BLOCK_M], float32: for each tile of weights, the factors that rescale earlier sums
    shares          [BLOCK_M], float32: the factors that normalise the final sums
    k_scales        [STAGES, BLOCK_N], float32: factors of scores per key; None unless float8 has scales per key
    v_scales        likewise, for values

Layouts
    SCORES     [BLOCK_M, BLOCK_N] in registers, the result layout of a product; a quad of threads holds a row
    OUT        [BLOCK_M, 256], likewise
    SUMS       [BLOCK_M, 8]: each thread adds up its own columns of SCORES
    WIDE       [rows, 64], 16 bytes of a row in each thread, for accesses to memory
    BYTES      [BLOCK_N, columns], the same for float8
    KEYS       [BLOCK_N], the rows of BYTES

Symbols
    sequences         the kernel parameters that all warps need: those by which they find sequences and splits
    arguments, results, places, factors
                      the other kernel parameters that score_keys, add_values, load_keys and convert_keys need
    queries           q_buffer, and the barrier for the arrival of queries
    q_quarters        columns 0 to 511 of the queries, 128 at a time, as operands of products
    keys, boxes       k_buffer and rest_buffer, or k_boxes and rest_boxes, with the same barriers; boxes also has
                      q_loaded
    weights, totals   p_buffer with its barriers and shrinks; shares with its barrier
    scales            k_scales and v_scales; both None unless each key has its own scale
    cache             pointers and strides of float8 rows and their scales, for one sequence and key head
    q_loaded          the barrier that signals that all queries of a tile have been loaded from memory
    k_ready, k_free   for each half of a stage, the barriers that signal that it is ready, and that it is free
    p_ready, p_free   for each tile of weights, the barriers that signal that it is stored, and that no worker needs it
                      any more
    shares_ready      the barrier that signals that shares are stored
    STAGES            number of stages of the buffers of keys
    at                number of tiles so far: the current one has stage at % STAGES, in round at // STAGES
    phase             phase bit: the lowest bit of the round, by which a wait tells it from the previous one
    turn              index of the current one of the two tiles of weights
    WORKER            index of this worker, one of the two that add values
    FLOAT8            whether keys are float8: then k_desc is a tuple of their address and strides in steps of 16 bytes
    ROWS, BOXES       keys of a box, and number of boxes in all stages for 64 columns
    LAYOUT            the layout of tiles whose rows are wanted
    q_place           where the rows of a tile begin in q
    place             rows of a tile; for k_buffer, a half of a stage
    page, slot        a box's page, or without pages its sequence, and its place there; `slot` of a split as in
                      decode_kernels.py
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait
)  # fmt: skip
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from . import runtime
from .decode_kernels import find_sequence, find_splits, in_units, key_span, nth_of, row_units
from .kernels import LOG2E, partial_row_sums

copy_tile, view = runtime.gluon_copy_of_tiles(), runtime.gluon_view_of_tiles()


@gluon.jit
def find_work(sequences, GROUP: gl.constexpr, BLOCK_M: gl.constexpr):
    """Sequence, tile, slot and key head of a program, tokens and keys, where its split begins, whether it has work."""
    (
        seq_lens_ptr, cu_seqlens_q_ptr, max_seqlen_k, reach, first_keys, tokens, longest, splits, split_size
    ) = sequences  # fmt: skip
    tiles, b = tl.cdiv(longest * GROUP, BLOCK_M), tl.program_id(1)
    tile, rest = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    slot, kv_h = rest % splits, rest // splits
    token, q_len, k_len = find_sequence(seq_lens_ptr, cu_seqlens_q_ptr, b, tokens, longest, max_seqlen_k)
    head, first_split, _ = find_splits(q_len, k_len, reach, first_keys, split_size)
    split_begin = nth_of(slot, head, first_split) * split_size
    there = (tile * BLOCK_M < q_len * GROUP) & (split_begin < k_len)
    return b, tile, slot, kv_h, token, q_len, k_len, split_begin, there


@gluon.jit
def find_rows(tile, q_len, kv_h, GROUP: gl.constexpr, BLOCK_M: gl.constexpr, LAYOUT: gl.constexpr):
    """Places of a tile's rows, their tokens and their heads; rows past the last one read what the last one reads."""
    place = tile * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, LAYOUT))
    return place, tl.minimum(place // GROUP, q_len - 1), kv_h * GROUP + place % GROUP


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers, one for each stage of a buffer; each waits for ARRIVALS arrivals and all expected bytes."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit
def load_queries(q_ptr, q_place, inside, sign, q_buffer, room, WIDE: gl.constexpr):
    """Copy the bits of a tile of queries to shared memory, the last columns to `room`.

    If `sign` is negative, the queries are negated.
    """
    place = q_ptr + q_place[:, None] + gl.arange(0, 64, gl.SliceLayout(0, WIDE))[None, :]
    for first in gl.static_range(0, 9, 5):
        # five at a time, so that they wait for memory together
        strips = ()
        for strip in gl.static_range(first, min(first + 5, 9)):
            strips += (tl.load(place + strip * 64, mask=inside[:, None], other=0.0),)
        for strip in gl.static_range(first, min(first + 5, 9)):
            q_strip = strips[strip - first]
            if sign < 0:
                q_strip = -q_strip
            strip_of(q_buffer, room, strip).store(q_strip.to(q_buffer.dtype, bitcast=True))


@gluon.jit
def strip_of(q_buffer, room, STRIP: gl.constexpr):
    """The buffer of columns STRIP * 64 to STRIP * 64 + 63 of a tile of queries; the last columns are in `room`."""
    return q_buffer.index(STRIP // 4).slice(STRIP % 4 * 64, 64, 1) if STRIP < 8 else room


@gluon.jit
def copy_keys(
    at, k_start, b, kv_h, lo, hi, k_desc, pages_ptr, boxes, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    PAGE: gl.constexpr, ROWS: gl.constexpr
):  # fmt: skip
    """Copy one tile of keys, each half of its columns as soon as its buffer is free."""
    k_boxes, rest_boxes, k_ready, k_free, q_loaded = boxes
    COUNT: gl.constexpr = BLOCK_N // ROWS
    stage, phase = at % STAGES, at // STAGES & 1
    # a second tile of keys must not delay the queries, which every tile needs
    mbarrier.wait(q_loaded, 0, pred=at == 1)
    for half in gl.static_range(2):
        place = stage * 2 + half
        ready = k_ready.index(place)
        mbarrier.wait(k_free.index(place), phase ^ 1)
        mbarrier.expect(ready, BLOCK_N * (5 - half) * 64 * 2)
        for i in tl.range(0, COUNT):
            page, slot = b, k_start + i * ROWS
            if pages_ptr is not None:
                # entries of keys that no row sees are not read: their pages may belong to other sequences by now
                page = tl.load(pages_ptr + slot // PAGE, mask=(slot < hi) & (slot + ROWS > lo), other=-1)
                slot = slot % PAGE
            if half == 0:
                copy_tile(k_desc, [page, kv_h, slot, 512], ready, rest_boxes.index(stage * COUNT + i))
            for strip in gl.static_range(4):
                to = k_boxes.index((place * 4 + strip) * COUNT + i)
                copy_tile(k_desc, [page, kv_h, slot, (half * 4 + strip) * 64], ready, to)


@gluon.jit
def load_keys(
    places, sequences, k_desc, pages_ptr, boxes, GROUP: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Copy the tiles of keys of a program, in order."""
    (
        seq_lens_ptr, cu_seqlens_q_ptr, max_seqlen_k, reach, first_keys, tokens, longest, splits, split_size
    ) = sequences  # fmt: skip
    (pages_stride_sequence,) = places
    b, tile, slot, kv_h, token, q_len, k_len, split_begin, there = find_work(sequences, GROUP, BLOCK_M)
    if there:
        q_begin = k_len - q_len
        q_first = tile * BLOCK_M // GROUP + q_begin
        q_last = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // GROUP + q_begin, k_len - 1)
        if pages_ptr is not None:
            pages_ptr += b.to(tl.int64) * pages_stride_sequence
        at = 0  # tiles so far
        lo, hi, _, _ = key_span(q_first, q_last, k_len)
        begin, end = tl.maximum(lo, split_begin), tl.minimum(hi, split_begin + split_size)
        first = begin // BLOCK_N
        last = tl.where(begin < end, tl.cdiv(end, BLOCK_N), first)
        for i in tl.range(first, last):
            k_start = i * BLOCK_N
            copy_keys(at, k_start, b, kv_h, lo, hi, k_desc, pages_ptr, boxes, BLOCK_N, STAGES, PAGE, ROWS)
            at += 1


@gluon.jit
def convert_queries(q_buffer, room, dtype: gl.constexpr, WIDE: gl.constexpr):
    """Convert a tile of bfloat16 queries to float16 in place, each row divided by its unit, which is returned.

    `dtype` is bfloat16; the last columns are in `room`.
    """
    largest = tl.abs(room.load(WIDE).to(dtype, bitcast=True))
    for strip in gl.static_range(8):
        largest = tl.maximum(largest, tl.abs(strip_of(q_buffer, room, strip).load(WIDE).to(dtype, bitcast=True)))
    q_unit = row_units(largest)
    for strip in gl.static_range(9):
        q_strip = strip_of(q_buffer, room, strip)
        q_strip.store(in_units(q_strip.load(WIDE).to(dtype, bitcast=True), q_unit))
    return q_unit


@gluon.jit
def find_pages(pages_ptr, k_start, lo, hi, BLOCK_N: gl.constexpr, PAGE: gl.constexpr, KEYS: gl.constexpr):
    """The pages of a tile's keys; entries of keys outside [lo, hi) are not read."""
    k_pos = k_start + gl.arange(0, BLOCK_N, KEYS)
    return tl.load(pages_ptr + k_pos // PAGE, mask=(k_pos >= lo) & (k_pos < hi), other=0)


@gluon.jit
def convert_tile(
    at, k_start, page, lo, hi, cache, keys, scales, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, PAGE: gl.constexpr,
    BYTES: gl.constexpr
):  # fmt: skip
    """Convert one tile of keys to float16, each half of its columns as soon as its buffer is free; `page` advances.

    Keys outside [lo, hi) are not even read: they are 0.
    """
    (
        k_ptr, k_stride_page, k_stride_token, pages_ptr, k_scale_ptr, k_scale_stride_page,
        k_scale_stride_token, v_scale_ptr, v_scale_stride_page, v_scale_stride_token
    ) = cache  # fmt: skip
    k_buffer, rest_buffer, k_ready, k_free = keys
    k_scales, v_scales = scales
    KEYS: gl.constexpr = gl.SliceLayout(1, BYTES)
    stage, phase = at % STAGES, at // STAGES & 1
    k_pos = k_start + gl.arange(0, BLOCK_N, KEYS)
    inside = (k_pos >= lo) & (k_pos < hi)
    k_page, k_slot = page.to(tl.int64), (k_pos if pages_ptr is None else k_pos % PAGE).to(tl.int64)
    place = k_ptr + (k_page * k_stride_page + k_slot * k_stride_token)[:, None] * 16
    rest = tl.load(place + gl.arange(512, 576, gl.SliceLayout(0, BYTES))[None, :], mask=inside[:, None], other=0.0)
    if k_scales is not None:
        k_scale_place = k_page * k_scale_stride_page + k_slot * k_scale_stride_token
        v_scale_place = k_page * v_scale_stride_page + k_slot * v_scale_stride_token
        k_scale = tl.load(k_scale_ptr + k_scale_place, mask=inside, other=0.0)
        v_scale = tl.load(v_scale_ptr + v_scale_place, mask=inside, other=0.0)
    if pages_ptr is not None:
        # one tile ahead, so that keys do not wait for their page numbers
        page = find_pages(pages_ptr, k_start + BLOCK_N, lo, hi, BLOCK_N, PAGE, KEYS)
    for half in gl.static_range(2):
        column = gl.arange(half * 256, half * 256 + 256, gl.SliceLayout(0, BYTES))
        columns = tl.load(place + column[None, :], mask=inside[:, None], other=0.0)
        mbarrier.wait(k_free.index(stage * 2 + half), phase ^ 1)
        if half == 0:
            rest_buffer.index(stage).store(rest.to(rest_buffer.dtype))
            if k_scales is not None:
                k_scales.index(stage).store(k_scale)
                v_scales.index(stage).store(v_scale)
        k_buffer.index(stage * 2 + half).store(columns.to(k_buffer.dtype))
        fence_async_shared()
        mbarrier.arrive(k_ready.index(stage * 2 + half), count=1)
    return page


@gluon.jit
def convert_keys(
    factors, sequences, k_desc, pages_ptr, keys, scales, GROUP: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, PAGE: tl.constexpr
):  # fmt: skip
    """Convert the tiles of keys of a program to float16, in order."""
    (
        seq_lens_ptr, cu_seqlens_q_ptr, max_seqlen_k, reach, first_keys, tokens, longest, splits, split_size
    ) = sequences  # fmt: skip
    (
        k_scale_ptr, v_scale_ptr, k_scale_stride_sequence, k_scale_stride_page, k_scale_stride_token,
        k_scale_stride_head, v_scale_stride_sequence, v_scale_stride_page, v_scale_stride_token,
        v_scale_stride_head, pages_stride_sequence
    ) = factors  # fmt: skip
    b, tile, slot, kv_h, token, q_len, k_len, split_begin, there = find_work(sequences, GROUP, BLOCK_M)
    k_ptr, k_stride_page, k_stride_token, k_stride_head = k_desc
    BYTES: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])
    if there:
        q_begin = k_len - q_len
        q_first = tile * BLOCK_M // GROUP + q_begin
        q_last = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // GROUP + q_begin, k_len - 1)
        k_ptr += kv_h.to(tl.int64) * k_stride_head * 16
        if pages_ptr is not None:
            pages_ptr += b.to(tl.int64) * pages_stride_sequence
        if k_scale_ptr is not None:
            k_scale_ptr += b.to(tl.int64) * k_scale_stride_sequence + kv_h.to(tl.int64) * k_scale_stride_head
            v_scale_ptr += b.to(tl.int64) * v_scale_stride_sequence + kv_h.to(tl.int64) * v_scale_stride_head
        at = 0  # tiles so far
        cache = (
            k_ptr, k_stride_page, k_stride_token, pages_ptr, k_scale_ptr, k_scale_stride_page,
            k_scale_stride_token, v_scale_ptr, v_scale_stride_page, v_scale_stride_token
        )  # fmt: skip
        lo, hi, _, _ = key_span(q_first, q_last, k_len)
        begin, end = tl.maximum(lo, split_begin), tl.minimum(hi, split_begin + split_size)
        first = begin // BLOCK_N
        last = tl.where(begin < end, tl.cdiv(end, BLOCK_N), first)
        page = (
            b + gl.full([BLOCK_N], 0, gl.int32, gl.SliceLayout(1, BYTES))
            if pages_ptr is None
            else find_pages(pages_ptr, first * BLOCK_N, lo, hi, BLOCK_N, PAGE, gl.SliceLayout(1, BYTES))
        )
        for i in tl.range(first, last):
            k_start = i * BLOCK_N
            page = convert_tile(at, k_start, page, lo, hi, cache, keys, scales, BLOCK_N, STAGES, PAGE, BYTES)
            at += 1


@gluon.jit
def multiply(
    at, q_quarters, q_rest, q_unit, k_scales, keys, SCORES: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """The product of a tile of queries and one of keys, times the factors of both, if any."""
    k_buffer, rest_buffer, k_ready, k_free = keys
    stage, phase = at % STAGES, at // STAGES & 1
    zeros = gl.full([q_rest.shape[0], BLOCK_N], 0.0, gl.float32, SCORES)
    mbarrier.wait(k_ready.index(stage * 2), phase)
    scoring = warpgroup_mma(q_rest, rest_buffer.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
    for quarter in gl.static_range(4):
        if quarter == 2:
            mbarrier.wait(k_ready.index(stage * 2 + 1), phase)
        k_tile = k_buffer.index(stage * 2 + quarter // 2).slice(quarter % 2 * 128, 128, 1)
        scoring = warpgroup_mma(q_quarters[quarter], k_tile.permute((1, 0)), scoring, is_async=True)
    score = warpgroup_mma_wait(0, [scoring])
    if q_unit is not None:
        score *= q_unit[:, None]
    if k_scales is not None:
        score *= k_scales.index(stage).load(gl.SliceLayout(0, SCORES))[None, :]
    return score


@gluon.jit
def weigh(
    m, l, score, k_start, at, weights, v_scales, terms, BLOCK_N: tl.constexpr, mixed
):  # fmt: skip
    """Hand on the weights of one tile of keys, and return the updated running maximum and partial row sums."""
    p_buffer, p_ready, p_free, shrinks = weights
    lo, hi, scale_log2, q_pos = terms
    # [BLOCK_N]
    k_pos = k_start + gl.arange(0, BLOCK_N, gl.SliceLayout(0, score.type.layout))
    inside = (k_pos >= lo) & (k_pos < hi)
    if mixed:
        keep = inside[None, :]
        keep &= k_pos[None, :] <= q_pos[:, None]  # causal
        score = tl.where(keep, score, float("-inf"))
    # [BLOCK_M]
    m_new = tl.maximum(m, tl.max(score, 1) * scale_log2)
    # a row that has seen no key yet has m = -inf: subtract 0 instead, as -inf - -inf is NaN
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(score * scale_log2 - pivot[:, None])  # [BLOCK_M, BLOCK_N]
    shrink = tl.exp2(m - pivot)  # [BLOCK_M]
    turn = at & 1
    mbarrier.wait(p_free.index(turn), at >> 1 & 1 ^ 1)
    weight = p
    if v_scales is not None:
        weight *= v_scales.index(at % v_scales.shape[0]).load(gl.SliceLayout(0, p.type.layout))[None, :]
    p_buffer.index(turn).store(weight.to(p_buffer.dtype))
    shrinks.index(turn).store(shrink)
    fence_async_shared()
    mbarrier.arrive(p_ready.index(turn), count=1)
    l *= gl.convert_layout(shrink, gl.SliceLayout(1, l.type.layout))[:, None]
    l += gl.convert_layout(partial_row_sums(p), l.type.layout, assert_trivial=True)
    return m_new, l


@gluon.jit
def score_keys(
    arguments, sequences, queries, keys, weights, totals, scales, GROUP: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, DV: tl.constexpr, BY_HEAD: tl.constexpr, FLOAT8: tl.constexpr
):  # fmt: skip
    """Hand on the weights of all tiles of keys, and store the LSE of a program's rows."""
    (
        seq_lens_ptr, cu_seqlens_q_ptr, max_seqlen_k, reach, first_keys, tokens, longest, splits, split_size
    ) = sequences  # fmt: skip
    (
        q_ptr, parts_ptr, scale, k_scale_ptr, q_stride_token, q_stride_head, k_scale_stride_sequence,
        k_scale_stride_head, Hq
    ) = arguments  # fmt: skip
    b, tile, slot, kv_h, token, q_len, k_len, split_begin, there = find_work(sequences, GROUP, BLOCK_M)
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    SUMS: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [8, 0]], [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 8]
    )
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    if there:
        count = q_len * GROUP
        place, row, h = find_rows(tile, q_len, kv_h, GROUP, BLOCK_M, WIDE)
        q_place = (token + row).to(tl.int64) * q_stride_token + h.to(tl.int64) * q_stride_head
        q_buffer, q_loaded = queries
        k_scales, v_scales = scales
        room, q_unit = weights[0].index(0), None  # the first weights overwrite it
        load_queries(q_ptr, q_place, place < count, scale, q_buffer, room, WIDE)
        mbarrier.arrive(q_loaded, count=1)
        if q_ptr.dtype.element_ty != q_buffer.dtype:
            q_unit = convert_queries(q_buffer, room, q_ptr.dtype.element_ty, WIDE)
            q_unit = gl.convert_layout(q_unit, gl.SliceLayout(1, SCORES))
        fence_async_shared()
        tl.debug_barrier()
        q_rest = room.load(gl.DotOperandLayout(0, SCORES, 2))
        # registers save a read of shared memory for each tile; with float8 the loader needs them
        q_quarters = ()
        for quarter in gl.static_range(4):
            q_quarter = q_buffer.index(quarter // 2).slice(quarter % 2 * 128, 128, 1)
            q_quarters += (
                q_quarter.load(gl.DotOperandLayout(0, SCORES, 2)) if quarter == 3 and not FLOAT8 else q_quarter,
            )
        tl.debug_barrier()
        if BY_HEAD:
            # scales that all keys share become factors of the rows, and of their result
            unit = tl.load(
                k_scale_ptr + b.to(tl.int64) * k_scale_stride_sequence + kv_h.to(tl.int64) * k_scale_stride_head
            )
            ones = gl.full([BLOCK_M], 1.0, gl.float32, gl.SliceLayout(1, SCORES))
            q_unit = unit * (ones if q_unit is None else q_unit)
        # [BLOCK_M]
        place, row, h = find_rows(tile, q_len, kv_h, GROUP, BLOCK_M, SCORES)
        q_begin = k_len - q_len
        # [BLOCK_M]
        q_pos = row + q_begin
        q_first = tile * BLOCK_M // GROUP + q_begin
        q_last = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // GROUP + q_begin, k_len - 1)
        scale = tl.maximum(tl.abs(scale), 1e-37)  # -inf * 0 would be NaN
        scale_log2 = scale * LOG2E
        # [BLOCK_M]
        m = gl.full([BLOCK_M], float("-inf"), tl.float32, gl.SliceLayout(1, SCORES))
        # [BLOCK_M, 8]
        l = gl.full([BLOCK_M, 8], 0.0, tl.float32, SUMS)
        at = 0  # tiles so far
        lo, hi, full_lo, full_hi = key_span(q_first, q_last, k_len)
        begin, end = tl.maximum(lo, split_begin), tl.minimum(hi, split_begin + split_size)
        first = begin // BLOCK_N
        last = tl.where(begin < end, tl.cdiv(end, BLOCK_N), first)
        terms = (lo, hi, scale_log2, q_pos)
        for i in tl.range(first, last):
            k_start = i * BLOCK_N
            mixed = (k_start < full_lo) | (k_start + BLOCK_N > full_hi)
            score = multiply(at, q_quarters, q_rest, q_unit, k_scales, keys, SCORES, BLOCK_N, STAGES)
            m, l = weigh(
                m, l, score, k_start, at, weights, v_scales, terms, BLOCK_N, mixed=mixed
            )  # fmt: skip
            at += 1

        l = gl.convert_layout(tl.sum(l, 1), m.type.layout)  # [BLOCK_M]
        shares, shares_ready = totals
        shares.store(tl.where(l == 0, 0.0, 1 / l))
        mbarrier.arrive(shares_ready, count=1)
        # for rows to which the split shows nothing, only the LSE says so
        lse = tl.where(l == 0, float("-inf"), m + tl.log2(l))
        part = ((token + row).to(tl.int64) * Hq + h) * splits + slot
        tl.store(parts_ptr + tl.cast(tokens, tl.int64) * Hq * splits * DV + part, lse, mask=place < count)


@gluon.jit
def add_weighted(
    at, acc, k_start, lo, hi, keys, weights, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, OUT: gl.constexpr,
    WORKER: gl.constexpr
):  # fmt: skip
    """Update acc with 256 columns of the weighted values of one tile."""
    k_buffer, rest_buffer, k_ready, k_free = keys
    p_buffer, p_ready, p_free, shrinks = weights
    place, turn = at % STAGES * 2 + WORKER, at & 1
    v_tile = k_buffer.index(place)
    mbarrier.wait(k_ready.index(place), at // STAGES & 1)
    if (k_start < lo) | (k_start + BLOCK_N > hi):
        # a weight of 0 does not remove a NaN
        WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
        k_pos = k_start + gl.arange(0, BLOCK_N, gl.SliceLayout(1, WIDE))
        inside = (k_pos >= lo) & (k_pos < hi)
        for strip in gl.static_range(4):
            v_strip = v_tile.slice(strip * 64, 64, 1)
            v_strip.store(tl.where(inside[:, None], v_strip.load(WIDE), 0.0))
        fence_async_shared()
        tl.debug_barrier()
    mbarrier.wait(p_ready.index(turn), at >> 1 & 1)
    acc *= shrinks.index(turn).load(gl.SliceLayout(1, OUT))[:, None]
    adding = warpgroup_mma(p_buffer.index(turn), v_tile, acc, is_async=True)
    acc = warpgroup_mma_wait(0, [adding])
    mbarrier.arrive(k_free.index(place), count=1)
    mbarrier.arrive(p_free.index(turn), count=1)
    return acc


@gluon.jit
def add_values(
    results, sequences, keys, weights, totals, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr, DV: tl.constexpr, BY_HEAD: tl.constexpr, WORKER: tl.constexpr
):  # fmt: skip
    """Store 256 columns of a split's partial out of a program's rows."""
    (
        seq_lens_ptr, cu_seqlens_q_ptr, max_seqlen_k, reach, first_keys, tokens, longest, splits, split_size
    ) = sequences  # fmt: skip
    parts_ptr, v_scale_ptr, v_scale_stride_sequence, v_scale_stride_head, Hq = results
    b, tile, slot, kv_h, token, q_len, k_len, split_begin, there = find_work(sequences, GROUP, BLOCK_M)
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    if there:
        q_begin = k_len - q_len
        q_first = tile * BLOCK_M // GROUP + q_begin
        q_last = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // GROUP + q_begin, k_len - 1)
        # [BLOCK_M, 256]
        acc = gl.full([BLOCK_M, 256], 0.0, gl.float32, OUT)
        at = 0  # tiles so far
        lo, hi, _, _ = key_span(q_first, q_last, k_len)
        begin, end = tl.maximum(lo, split_begin), tl.minimum(hi, split_begin + split_size)
        first = begin // BLOCK_N
        last = tl.where(begin < end, tl.cdiv(end, BLOCK_N), first)
        for i in tl.range(first, last):
            k_start = i * BLOCK_N
            acc = add_weighted(at, acc, k_start, lo, hi, keys, weights, BLOCK_N, STAGES, OUT, WORKER)
            at += 1

        shares, shares_ready = totals
        mbarrier.wait(shares_ready, 0)
        share = shares.load(gl.SliceLayout(1, OUT))  # [BLOCK_M]
        place, row, h = find_rows(tile, q_len, kv_h, GROUP, BLOCK_M, OUT)
        part = ((token + row).to(tl.int64) * Hq + h) * splits + slot
        column = WORKER * 256 + gl.arange(0, 256, gl.SliceLayout(0, OUT))
        seen = ((place < q_len * GROUP) & (share > 0))[:, None] & (column < DV)[None, :]
        if BY_HEAD:
            share *= tl.load(
                v_scale_ptr + b.to(tl.int64) * v_scale_stride_sequence + kv_h.to(tl.int64) * v_scale_stride_head
            )
        tl.store(parts_ptr + part[:, None] * DV + column[None, :], acc * share[:, None], mask=seen)


@gluon.jit(do_not_specialize=["max_seqlen_k", "reach", "first_keys", "tokens", "longest", "Hq", "splits", "split_size"])
def attend_split(
    k_desc, q_ptr, seq_lens_ptr, cu_seqlens_q_ptr, pages_ptr, parts_ptr, scale, k_scale_ptr, v_scale_ptr,
    max_seqlen_k, reach, first_keys, q_stride_token, q_stride_head, k_scale_stride_sequence, k_scale_stride_page,
    k_scale_stride_token, k_scale_stride_head, v_scale_stride_sequence, v_scale_stride_page, v_scale_stride_token,
    v_scale_stride_head, pages_stride_sequence, tokens, longest, Hq, splits, split_size, GROUP: tl.constexpr,
    PAGE: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BY_HEAD: tl.constexpr,
    OVERLAP: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Store the partial out and LSE of a split of keys for a tile of rows."""
    FLOAT8: gl.constexpr = isinstance(k_desc, tl.tuple)
    dtype: gl.constexpr = gl.float16 if FLOAT8 else k_desc.dtype
    STRIPS: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    q_buffer = gl.allocate_shared_memory(dtype, [2, BLOCK_M, 256], STRIPS)
    k_ready, k_free, q_loaded = barriers(2 * STAGES, 1), barriers(2 * STAGES, 1), barriers(1, 1).index(0)
    boxes, k_scales, v_scales = None, None, None
    if FLOAT8:
        k_buffer = gl.allocate_shared_memory(dtype, [2 * STAGES, BLOCK_N, 256], STRIPS)
        rest_buffer = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, 64], STRIPS)
        if k_scale_ptr is not None and not BY_HEAD:
            k_scales = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_N], PLAIN)
            v_scales = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_N], PLAIN)
    else:
        BOXES: gl.constexpr = STAGES * (BLOCK_N // ROWS)
        k_boxes = gl.allocate_shared_memory(dtype, [8 * BOXES, 1, 1, ROWS, 64], k_desc.layout)
        k_buffer = view(k_boxes, dtype, [2 * STAGES, BLOCK_N, 256], STRIPS)
        rest_boxes = gl.allocate_shared_memory(dtype, [BOXES, 1, 1, ROWS, 64], k_desc.layout)
        rest_buffer = view(rest_boxes, dtype, [STAGES, BLOCK_N, 64], STRIPS)
        boxes = (k_boxes, rest_boxes, k_ready, k_free, q_loaded)
    p_buffer = gl.allocate_shared_memory(dtype, [2, BLOCK_M, BLOCK_N], STRIPS)
    shrinks = gl.allocate_shared_memory(gl.float32, [2, BLOCK_M], PLAIN)
    shares = gl.allocate_shared_memory(gl.float32, [BLOCK_M], PLAIN)
    queries, scales = (q_buffer, q_loaded), (k_scales, v_scales)
    keys = (k_buffer, rest_buffer, k_ready, k_free)
    weights = (p_buffer, barriers(2, 1), barriers(2, 2), shrinks)
    totals = (shares, barriers(1, 1).index(0))
    fence_async_shared()
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    sequences = (
        seq_lens_ptr, cu_seqlens_q_ptr, max_seqlen_k, reach, first_keys, tokens, longest, splits, split_size
    )  # fmt: skip
    arguments = (
        q_ptr, parts_ptr, scale, k_scale_ptr, q_stride_token, q_stride_head, k_scale_stride_sequence,
        k_scale_stride_head, Hq
    )  # fmt: skip
    results = (parts_ptr, v_scale_ptr, v_scale_stride_sequence, v_scale_stride_head, Hq)
    places = (pages_stride_sequence,)
    factors = (
        k_scale_ptr, v_scale_ptr, k_scale_stride_sequence, k_scale_stride_page, k_scale_stride_token,
        k_scale_stride_head, v_scale_stride_sequence, v_scale_stride_page, v_scale_stride_token,
        v_scale_stride_head, pages_stride_sequence
    )  # fmt: skip
    # workers get the registers that the loader does not need
    gl.warp_specialize(
        [
            (score_keys, (
                arguments, sequences, queries, keys, weights, totals, scales, GROUP, BLOCK_M, BLOCK_N, STAGES, DV,
                BY_HEAD, FLOAT8
            )),
            (add_values, (
                results, sequences, keys, weights, totals, GROUP, BLOCK_M, BLOCK_N, STAGES, DV, BY_HEAD, 0
            )),
            (add_values, (
                results, sequences, keys, weights, totals, GROUP, BLOCK_M, BLOCK_N, STAGES, DV, BY_HEAD, 1
            )),
            (convert_keys, (
                factors, sequences, k_desc, pages_ptr, keys, scales, GROUP, BLOCK_M, BLOCK_N, STAGES, PAGE
            )) if FLOAT8 else (load_keys, (
                places, sequences, k_desc, pages_ptr, boxes, GROUP, BLOCK_M, BLOCK_N, STAGES, PAGE, ROWS
            )),
        ],
        [4, 4, 4 if FLOAT8 else 1], [160, 160, 80] if FLOAT8 else [168, 168, 24],
    )  # fmt: skip
