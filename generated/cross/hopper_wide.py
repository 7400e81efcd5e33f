# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/cross.yaml
#   content hash  e9b032a15a573ece
#   text hash     6cde321ae72440db
#   render with   attnforge render specs/cross.yaml
"""The kernel `backward` of hopper_backward.py for heads wider than 128; the kernels before and after it are the same.

In each program one warp loads, and three groups of four warps compute one gradient each: dV and dK of the program's 64
keys, and its share of dQ:

    load_tiles   from hopper_backward.py
    make_dv      for each tile of queries: recomputes scores and weights, adds to dV, and hands the weights on
    make_dk      computes dS from these weights, adds to dK, and hands dS on
    make_dq      computes the program's share of dQ from dS, and adds it to memory, as other programs do

So no thread holds more than one accumulator of a wide head. Tiles have 256 columns; products leave out the last 64 if
they are empty. The groups pass weights (in float32) and dS (in two stages) through shared memory. For each, one barrier
says that it is ready, and one that it may be overwritten.
Programs add their shares to dQ in no fixed order, so the last bits differ from run to run. dQ is accumulated as
[64, 64] tiles in the register order of a product's result.

Layouts
    SCORES     [64, BLOCK_M] in registers, keys by queries, the result layout of a product
    OUT        [64, BLOCK_DV], likewise: dV; or [64, 128]: the first columns of dK
    OUT_REST   [64, REST], likewise: the remaining columns of dK
    FACTORS    [64, BLOCK_M] as the left operand of the products that compute OUT
    SHARE      [BLOCK_M, 64], the result layout of the product for a piece of the program's share of dQ
    WIDE       [64, BLOCK_D] or [64, BLOCK_DV], 16 bytes of a row in each thread, for stores to memory

Symbols
    weights                   dS / (dP - delta), [64, BLOCK_M], stored as [16, 256] in the order of threads
    weights_ready, weights_free
                              barriers that signal that these are stored, and that they may be overwritten
    below                     -delta in each row of a tile of scores; a product adds dp to it
    dp_less_delta             dp - delta, in the order of threads
    factors                   dS, [64, BLOCK_M] per stage
    factors_ready, factors_free
                              the same barriers for each stage of factors
    for_dv, for_dk, for_dq    the kernel parameters that each of these groups needs
    final                     index of the last tile visited
    dk, dk_rest               the first 128 columns of dK, and the REST columns after them
    dq_sum_ptr                accumulator of dQ: [batch entries, heads, rows, columns] in float32, with rows for whole
                              tiles of BLOCK_M queries of each batch entry, and columns for whole pieces
    PIECES                    columns of a piece of dQ, 64, or 32 for heads of up to 32; number of pieces side by side
    sum_tile                  first piece of the batch entry and head in dq_sum
    share_tile                first such tile of the current queries
    items                     number of tiles of keys that programs take
    tiles                     number of tiles of keys of a head
    group                     number of key heads in a group, whose tiles follow one another
    grouped, joined           number of heads in such groups, and of the last heads, which form one group
    place                     positions in dq_sum
    taken_ptr                 for load_tiles, which reads it in persistent programs
    STAGES                    number of stages of the buffers of queries and of dout
    K_STAGES                  number of stages of keys and of values, for load_tiles: one
    keys, exchange, queries   buffers of what the program owns, of what groups hand on, and of what they iterate over,
                              with their barriers
    WORKERS                   multiples of 64 keys that a program owns, for load_tiles: one
    lengths                   the kernel parameters that load_tiles needs
    terms                     a tuple that make_dv builds for its steps: values that no step changes
    x_buffer                  tiles of x in shared memory; for queries and dout, one per stage
    x_ready                   for each of its stages, the barrier for the tile's arrival
    scale_log2                scale * LOG2E
    at                        number of tiles so far: the current one has stage at % STAGES, in round at // STAGES
    phase                     phase bit: the lowest bit of the round, by which a wait tells it from the previous one
    come                      the barrier for the arrival of tiles that reach behind a sequence; the loader clears them
    turns                     what load_tiles needs in persistent programs: nothing here
    kv_ready                  the barrier for the arrival of keys and values
    zeros                     the accumulator from which the products for scores and dP start
    free                      for each stage of the buffers, the barrier at which make_dv and make_dk report that they
                              are done
    turn                      the current stage of factors
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait
)  # fmt: skip

from . import runtime
from .hopper import barriers, matrix, score_product, store_rows
from .hopper_backward import by_threads, load_tiles, place_of
from .kernels import LOG2E, find_entry, query_tiles

wait_for_threads = runtime.gluon_barrier_of_threads()


@gluon.jit
def as_scores(x, SCORES: gl.constexpr):
    """[64, 64] in the result layout of a product, from the order of threads."""
    rows = x.reshape([8, 4, 8, 4, 2, 2]).permute([1, 4, 2, 0, 3, 5]).reshape([64, 64])
    return gl.convert_layout(rows, SCORES, assert_trivial=True)


@gluon.jit
def weigh(
    at, dv, k_tile, queries, exchange, terms, D: tl.constexpr, BLOCK_M: tl.constexpr, STAGES: tl.constexpr,
    SCORES: tl.constexpr, OUT: tl.constexpr, mixed
):  # fmt: skip
    """Update dV with one tile of queries, and hand on dS / (dP - delta): the weights, times any slopes of scores."""
    q_buffer, q_ready, dout_buffer, lse_buffer, delta_buffer, dout_ready, free = queries
    weights, weights_ready, weights_free, factors, factors_ready, factors_free = exchange
    stage, phase = at % STAGES, at // STAGES & 1
    k_len, scale_log2, k_pos = terms
    mbarrier.wait(q_ready.index(stage), phase)
    q_tile, dout_tile = matrix(q_buffer, stage), matrix(dout_buffer, stage)
    zeros = gl.full([64, BLOCK_M], 0.0, gl.float32, SCORES)
    scoring = score_product(k_tile, q_tile, zeros, D, ADDS=False)
    mbarrier.wait(dout_ready.index(stage), phase)
    score = warpgroup_mma_wait(0, [scoring])
    if mixed:
        keep = (k_pos < k_len)[:, None]
        score = tl.where(keep, score, float("-inf"))
    # [BLOCK_M]
    lse = lse_buffer.index(stage).load(gl.SliceLayout(0, SCORES))
    p = tl.exp2(score * scale_log2 - lse[None, :])  # [64, BLOCK_M]
    mbarrier.wait(weights_free, at & 1 ^ 1)
    weights.store(by_threads(p))
    mbarrier.arrive(weights_ready, count=1)
    FACTORS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    dv = warpgroup_mma(gl.convert_layout(p.to(q_buffer.dtype), FACTORS), dout_tile, dv, is_async=True)
    dv = warpgroup_mma_wait(0, [dv])
    mbarrier.arrive(free.index(stage), count=1)
    return at + 1, dv


@gluon.jit
def over_columns(x, SCORES: gl.constexpr):
    """A value for each column, in 64 rows; registers are written one by one, so that a product takes them in place."""
    rows = x[None, :] + gl.full([64, x.shape[0]], 0.0, gl.float32, SCORES)
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [rows], gl.float32, False, 1)


@gluon.jit
def derive(
    at, dk, dk_rest, v_tile, queries, exchange, STAGES: tl.constexpr, SCORES: tl.constexpr, OUT: tl.constexpr
):  # fmt: skip
    """Update dK with one tile of queries, and hand dS on."""
    q_buffer, q_ready, dout_buffer, lse_buffer, delta_buffer, dout_ready, free = queries
    weights, weights_ready, weights_free, factors, factors_ready, factors_free = exchange
    stage, phase = at % STAGES, at // STAGES & 1
    mbarrier.wait(dout_ready.index(stage), phase)
    below = over_columns(-delta_buffer.index(stage).load(gl.SliceLayout(0, SCORES)), SCORES)
    weighing = warpgroup_mma(v_tile, matrix(dout_buffer, stage).permute((1, 0)), below, is_async=True)
    dp_less_delta = by_threads(warpgroup_mma_wait(0, [weighing]))
    mbarrier.wait(weights_ready, at & 1)
    ds = dp_less_delta * weights.load(dp_less_delta.type.layout)
    mbarrier.arrive(weights_free, count=1)
    ds = as_scores(ds.to(q_buffer.dtype), SCORES)
    turn = at & 1
    mbarrier.wait(factors_free.index(turn), at >> 1 & 1 ^ 1)
    factors.index(turn).store(ds)
    fence_async_shared()
    mbarrier.arrive(factors_ready.index(turn), count=1)
    mbarrier.wait(q_ready.index(stage), phase)
    q_tile = matrix(q_buffer, stage)
    FACTORS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    left = gl.convert_layout(ds, FACTORS)
    dk = warpgroup_mma(left, q_tile.slice(0, 128, 1), dk, is_async=True)
    dk_rest = warpgroup_mma(left, q_tile.slice(128, dk_rest.shape[1], 1), dk_rest, is_async=True)
    dk, dk_rest = warpgroup_mma_wait(0, [dk, dk_rest])
    mbarrier.arrive(free.index(stage), count=1)
    return at + 1, dk, dk_rest


@gluon.jit
def add_rows(ptr, x):
    """Add 16 rows of 256 floats to memory, four neighbours at a time."""
    row = gl.arange(0, 16, gl.SliceLayout(1, x.type.layout))
    column = gl.arange(0, 256, gl.SliceLayout(0, x.type.layout)) & -4
    place = (ptr + row[:, None] * 256 + column[None, :]).to(gl.int64)
    # an addition without a result needs no registers for one
    gl.inline_asm_elementwise(
        "red.relaxed.gpu.global.add.v4.f32 [$5], {$1, $2, $3, $4}; mov.b32 $0, 0;",
        "=r,f,f,f,f,l,l,l,l", [x, place], gl.int8, False, 4
    )  # fmt: skip
    # without this barrier the assembler delays some additions past the next product, and runs out of registers
    wait_for_threads()


@gluon.jit
def spread(
    at, share_tile, k_tile, exchange, dq_sum_ptr, D: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """Add the program's share of dQ to memory for one tile of queries, 64 columns at a time."""
    weights, weights_ready, weights_free, factors, factors_ready, factors_free = exchange
    SHARE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    turn = at & 1
    mbarrier.wait(factors_ready.index(turn), at >> 1 & 1)
    left = factors.index(turn).permute((1, 0))
    PIECES: gl.constexpr = (D + 63) // 64
    for piece in gl.static_range(PIECES):
        zeros = gl.full([BLOCK_M, 64], 0.0, gl.float32, SHARE)
        share = warpgroup_mma(left, k_tile.slice(piece * 64, 64, 1), zeros, use_acc=False, is_async=True)
        share = warpgroup_mma_wait(0, [share])
        if piece == PIECES - 1:
            mbarrier.arrive(factors_free.index(turn), count=1)
        add_rows(dq_sum_ptr + (share_tile + piece).to(gl.int64) * 4096, by_threads(share))
    return at + 1


@gluon.jit
def make_dv(
    for_dv, keys, queries, exchange, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr
):  # fmt: skip
    """Store dV of a program's keys."""
    dv_ptr, entries_ptr, q_total, k_total, Hq, scale, tiles, group, grouped, joined = for_dv
    k_buffer, v_buffer, kv_ready = keys
    q_buffer, q_ready, dout_buffer, lse_buffer, delta_buffer, dout_ready, free = queries
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128 if BLOCK_DV > 128 else BLOCK_DV, 16])
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BLOCK_DV, BLOCK_DV // 8], [4, 1], [1, 0])
    tile, b, h = place_of(tl.program_id(0), Hq, tiles, group, grouped, joined)
    k_start = tile * BLOCK_N
    q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
    if k_start < k_len:
        # [64]
        k_pos = k_start + gl.arange(0, 64, gl.SliceLayout(1, SCORES))
        scale_log2 = scale * LOG2E
        # [64, BLOCK_DV]
        dv = gl.full([64, BLOCK_DV], 0.0, gl.float32, OUT)
        mbarrier.wait(kv_ready.index(0), 0)
        k_tile = matrix(k_buffer, 0)
        at = 0  # tiles of queries so far
        first, _, _, last = query_tiles(q_len, BLOCK_M)
        terms = (k_len, scale_log2, k_pos)
        if k_start + BLOCK_N <= k_len:
            for _ in tl.range(first, last):
                at, dv = weigh(
                    at, dv, k_tile, queries, exchange, terms, D, BLOCK_M, STAGES, SCORES, OUT, mixed=False
                )  # fmt: skip
        else:
            for _ in tl.range(first, last):
                at, dv = weigh(
                    at, dv, k_tile, queries, exchange, terms, D, BLOCK_M, STAGES, SCORES, OUT, mixed=True
                )  # fmt: skip

        # through the shared memory of the last tile of dout, once the other group is done with it
        final = tl.maximum(at - 1, 0)
        if at > 0:
            mbarrier.wait(free.index(final % STAGES), final // STAGES & 1)
        dv_tile = matrix(dout_buffer, final % STAGES)
        dv_tile.store(dv.to(v_buffer.dtype))
        first_row = (b.to(tl.int64) * k_total + k_offset) * Hq + h
        store_rows(dv_ptr + first_row * DV, Hq * DV, dv_tile.load(WIDE), k_start, k_len, DV)


@gluon.jit
def make_dk(
    for_dk, keys, queries, exchange, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """Store dK of a program's keys."""
    dk_ptr, entries_ptr, q_total, k_total, Hq, scale, tiles, group, grouped, joined = for_dk
    k_buffer, v_buffer, kv_ready = keys
    q_buffer, q_ready, dout_buffer, lse_buffer, delta_buffer, dout_ready, free = queries
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    REST: gl.constexpr = 64 if D <= 192 else 128
    OUT_REST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST, 16])
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BLOCK_D, BLOCK_D // 8], [4, 1], [1, 0])
    tile, b, h = place_of(tl.program_id(0), Hq, tiles, group, grouped, joined)
    k_start = tile * BLOCK_N
    q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
    if k_start < k_len:
        # [64, 128], [64, REST]
        dk = gl.full([64, 128], 0.0, gl.float32, OUT)
        dk_rest = gl.full([64, REST], 0.0, gl.float32, OUT_REST)
        mbarrier.wait(kv_ready.index(0), 0)
        v_tile = matrix(v_buffer, 0)
        at = 0  # tiles of queries so far
        first, _, _, last = query_tiles(q_len, BLOCK_M)
        for _ in tl.range(first, last):
            at, dk, dk_rest = derive(
                at, dk, dk_rest, v_tile, queries, exchange, STAGES, SCORES, OUT
            )  # fmt: skip

        # through the shared memory of the last tile of queries, once the other group is done with it; tiles of values
        # may have fewer columns
        final = tl.maximum(at - 1, 0)
        if at > 0:
            mbarrier.wait(free.index(final % STAGES), final // STAGES & 1)
        dk_tile = matrix(q_buffer, final % STAGES)
        dk_tile.slice(0, 128, 1).store((dk * scale).to(q_buffer.dtype))
        dk_tile.slice(128, REST, 1).store((dk_rest * scale).to(q_buffer.dtype))
        first_row = (b.to(tl.int64) * k_total + k_offset) * Hq + h
        store_rows(dk_ptr + first_row * D, Hq * D, dk_tile.load(WIDE), k_start, k_len, D)


@gluon.jit
def make_dq(
    for_dq, keys, exchange, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Add a program's share of dQ to memory."""
    dq_sum_ptr, entries_ptr, q_total, k_total, Hq, tiles, group, grouped, joined = for_dq
    k_buffer, v_buffer, kv_ready = keys
    tile, b, h = place_of(tl.program_id(0), Hq, tiles, group, grouped, joined)
    k_start = tile * BLOCK_N
    q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
    if k_start < k_len:
        mbarrier.wait(kv_ready.index(0), 0)
        k_tile = matrix(k_buffer, 0)
        at = 0  # tiles of queries so far
        first, _, _, last = query_tiles(q_len, BLOCK_M)
        sum_tile = ((b.to(tl.int64) * Hq + h) * tl.cdiv(q_total, BLOCK_M) * BLOCK_M // 64 * ((D + 63) // 64)).to(
            tl.int32
        )
        for i in tl.range(first, last):
            q_start = i * BLOCK_M
            at = spread(
                at, sum_tile + q_start // 64 * ((D + 63) // 64), k_tile, exchange, dq_sum_ptr, D, BLOCK_M
            )  # fmt: skip


@gluon.jit(do_not_specialize=["q_total", "k_total", "Hq", "items", "tiles", "group", "grouped", "joined"])
def backward(
    q_desc, k_desc, v_desc, dout_desc, dq_sum_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, taken_ptr, entries_ptr,
    scale, q_total, k_total, Hq, items, tiles, group, grouped, joined, D: tl.constexpr, DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    STAGES: tl.constexpr, K_STAGES: tl.constexpr
):  # fmt: skip
    """Store dK and dV of one tile of keys of one head, and add to dQ."""
    gl.static_assert((BLOCK_M == 64) & (BLOCK_N == 64), "a group of warps makes tiles of 64 queries by 64 keys")
    WORKERS: gl.constexpr = BLOCK_N // 64
    k_buffer = gl.allocate_shared_memory(k_desc.dtype, [K_STAGES * WORKERS, 1, 1, 64, BLOCK_D], k_desc.layout)
    v_buffer = gl.allocate_shared_memory(v_desc.dtype, [K_STAGES * WORKERS, 1, 1, 64, BLOCK_DV], v_desc.layout)
    q_buffer = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_D], q_desc.layout)
    dout_buffer = gl.allocate_shared_memory(dout_desc.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DV], dout_desc.layout)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    lse_buffer = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], PLAIN)
    delta_buffer = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], PLAIN)
    weights = gl.allocate_shared_memory(gl.float32, [16, 256], gl.SwizzledSharedLayout(4, 1, 1, [1, 0]))
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, BLOCK_M], q_desc.dtype)
    factors = gl.allocate_shared_memory(q_desc.dtype, [2, 64, BLOCK_M], TILE)
    keys, turns = (k_buffer, v_buffer, barriers(1, 1)), ()
    queries = (
        q_buffer, barriers(STAGES, 1), dout_buffer, lse_buffer, delta_buffer, barriers(STAGES, 2), barriers(STAGES, 2)
    )  # fmt: skip
    exchange = (
        weights, barriers(1, 1).index(0), barriers(1, 1).index(0), factors, barriers(2, 1), barriers(2, 1)
    )  # fmt: skip
    come = () if entries_ptr is None else barriers(1, 1).index(0)
    fence_async_shared()
    for_dv = (dv_ptr, entries_ptr, q_total, k_total, Hq, scale, tiles, group, grouped, joined)
    for_dk = (dk_ptr, entries_ptr, q_total, k_total, Hq, scale, tiles, group, grouped, joined)
    for_dq = (dq_sum_ptr, entries_ptr, q_total, k_total, Hq, tiles, group, grouped, joined)
    lengths = (
        lse_ptr, delta_ptr, taken_ptr, entries_ptr, q_total, k_total, Hq, items, tiles, group, grouped,
        joined
    )  # fmt: skip
    # the first group gets the registers that the others do not need
    gl.warp_specialize(
        [
            (make_dv, (
                for_dv, keys, queries, exchange, BLOCK_M, BLOCK_N, STAGES, D, DV, BLOCK_DV
            )),
            (make_dk, (
                for_dk, keys, queries, exchange, BLOCK_M, BLOCK_N, STAGES, D, BLOCK_D
            )),
            (make_dq, (
                for_dq, keys, exchange, BLOCK_M, BLOCK_N, D
            )),
            (load_tiles, (
                lengths, keys, turns, queries, q_desc, k_desc, v_desc, dout_desc, come, BLOCK_M, BLOCK_N,
                STAGES, K_STAGES, WORKERS
            )),
        ],
        [4, 4, 1], [208, 72, 24],
    )  # fmt: skip
