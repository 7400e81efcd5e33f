# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/full.yaml
#   content hash  0156e2c9ca2ab876
#   text hash     7cf17a4f8c675ee4
#   render with   attnforge render specs/full.yaml
"""The backward pass of kernels.py for Hopper GPUs in one pass; the header of that file has the formulas and names.

    prepare      computes delta, and clears either the counters of programs or the accumulator of dQ
    backward     computes dK and dV of tiles of BLOCK_N keys, and their share of dQ; in Gluon
    finish       turns the accumulator into dQ

At head sizes up to 64 with many tiles of keys, programs of `backward` may be persistent: each takes the next tile that
no program has taken. Otherwise each has one tile. In each program one warp loads, one adds to dQ, and two workers of
four warps each own 64 of a tile's keys:

    load_tiles   waits until a buffer stage is free, then has the next tile of keys and values, or of queries and dout,
                 copied into it, even while workers still store the results of the previous tile of keys
    work         for each tile of queries: recomputes scores and weights, then its share of dV and dK, and half of the
                 program's share of dQ
    add_shares   has the copy engine add the program's share of dQ to memory; up to COUNTED queries, the share of the
                 first program to reach a tile is stored instead, and the other programs wait for that

A stage is ready when all its bytes have arrived, LSE and delta of its queries together with those of dout, and free
when both workers are done with it; each has a barrier.
The workers exchange dS for the products of dQ through shared memory, in two stages. dQ is accumulated in pieces, in
the register order of a product's result.
Programs add their shares to it in no fixed order, so the last bits differ from run to run.

Layouts
    SCORES     [64, BLOCK_M] in registers, keys by queries, the result layout of a product
    OUT        [64, BLOCK_D], likewise: dK and dV
    FACTORS    [64, BLOCK_M] as the left operand of the products that compute OUT
    SHARE      [64, PIECE], the result layout of the product for a worker's half of the program's share of dQ
    ROWS       [64, BLOCK_D] in shared memory, between OUT and WIDE
    WIDE       [64, BLOCK_D], 16 bytes of a row in each thread, for stores to memory

Symbols
    dq_sum_ptr                accumulator of dQ: [batch entries, heads, rows, columns] in float32, with rows for whole
                              tiles of BLOCK_M queries of each batch entry, and columns for whole pieces
    PIECE, PIECES             columns of a piece of dQ, 64, or 32 for heads of up to 32; number of pieces side by side
    dq_sum_desc               the same, viewed as [.., 256]: PIECE / 4 such rows are a piece, of 64 queries
    sum_row                   first row of the batch entry and head in dq_sum
    sum_tile                  first piece of the batch entry and head in dq_sum
    items                     number of tiles of keys that programs take
    tiles                     number of tiles of keys of a head
    group                     number of key heads in a group, whose tiles follow one another
    grouped, joined           number of heads in such groups, and of the last heads, which form one group
    behind                    a tile's place, counted from the first tile of the last heads
    place                     position of a tile in the order in which programs take them; also a position in dq_sum
    taken_ptr                 number of tiles that programs have taken besides the first of each; then, for each tile of
                              queries of a head, the number of programs that have reached it with a share of dQ, plus
                              2**24 once the first share is stored
    count_ptr                 the latter number for the current tile
    counted                   the kernel parameters that add_shares needs
    places                    for each stage of keys, which tile of which head it holds
    STAGES                    number of stages of the buffers of queries and of dout
    K_STAGES                  number of stages of the buffers of keys and of values: 2 in persistent programs, or 1
    keys, exchange, queries   buffers of what workers own, of what they exchange, and of what they iterate over, with
                              their barriers
    WORKERS                   number of workers in a program
    WORKER                    index of this worker
    arguments                 the kernel parameters that workers need
    lengths                   the kernel parameters that the loader needs
    terms                     a tuple that a worker or the loader builds for its steps: values that no step changes
    x_buffer                  tiles of x in shared memory, one per stage
    x_ready                   for each of its stages, the barrier for the tile's arrival
    scale_log2                scale * LOG2E
    at                        number of tiles so far: the current one has stage at % STAGES, in round at // STAGES
    phase                     phase bit: the lowest bit of the round, by which a wait tells it from the previous one
    ends                      number of tiles so far that reach behind their sequence
    come                      the barrier for the arrival of such a tile, in which the loader clears rows before workers
                              see it; () if there is no such tile
    turns                     kv_free and places, which announce the next tiles in persistent programs
    begun                     number of tiles of keys so far: the current one has stage begun % K_STAGES
    kv_ready                  for each of these stages, the barrier for the arrival of keys and values
    kv_free                   for each, the barrier at which both workers report that they are done, and add_shares that
                              it knows the tile
    keys_of                   the keys of each worker
    v_held, v_shared          the two halves, of 64 columns, of a worker's values: v_held in registers, v_shared in
                              shared memory
    zeros                     the accumulator from which the products for scores and dP start
    free                      for each stage of the buffers, the barrier at which workers report that they are done
    factors                   dS as workers exchange it, [BLOCK_M, 64] per stage and worker
    factors_ready             for each of these stages, the barrier at which both workers have stored dS, and all of the
                              last step is read
    turn                      the current stage of factors
    walked                    at, as an unsigned number up to 64 columns
    AHEAD, ASIDE              first query and first column of the worker's half of the program's share of dQ
    shares                    each worker's half in shared memory, for the copy engine
    shares_ready              for each worker, the barrier at which it reports that its half is stored
    shares_read               the barrier that signals that the copy engine has read both
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
)  # fmt: skip

from . import kernels, runtime
from .hopper import barriers, clear_behind, copy_tile, matrix, store_rows
from .kernels import LOG2E, batch_and_head, find_entry, load_tile, query_tiles

add_tile, store_tile = runtime.gluon_sum_of_tiles(), runtime.gluon_store_of_tiles()
view = runtime.gluon_view_of_tiles()

COUNTED = tl.constexpr(4096)  # up to this many queries a program begins dQ itself; with more, zeros are faster


@triton.jit(do_not_specialize=["q_total", "k_total", "Hq"])
def prepare(
    out_desc, dout_desc, dq_sum_ptr, taken_ptr, dlse_ptr, delta_ptr, entries_ptr, q_total, k_total, Hq,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_DV: tl.constexpr, PIECE: tl.constexpr,
    TILE_AXIS: tl.constexpr
):  # fmt: skip
    """Store delta, rowsum(out * dout) - dlse, of a tile of queries of one head; clear its counter or its sums of dQ."""
    tl.store(taken_ptr, 0, mask=tl.program_id(0) + tl.program_id(1) + tl.program_id(2) == 0)
    tile = tl.program_id(TILE_AXIS)
    b, h = batch_and_head(Hq, TILE_AXIS)
    q_start = tile * BLOCK_M
    q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
    if entries_ptr is not None:
        if q_start >= q_len:
            return
    # [BLOCK_M, BLOCK_DV]
    dout_tile = load_tile(dout_desc, b, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_DV)
    out_tile = load_tile(out_desc, b, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_DV)
    # [BLOCK_M]
    delta = tl.sum(out_tile.to(tl.float32) * dout_tile.to(tl.float32), 1)
    row_base = (b.to(tl.int64) * Hq + h) * q_total + q_offset
    row = q_start + tl.arange(0, BLOCK_M)
    if dlse_ptr is not None:
        # the derivative of the LSE with respect to a score is its weight, so that ds gains p * dlse
        delta -= tl.load(dlse_ptr + row_base + row, mask=row < q_len, other=0.0) * LOG2E
    tl.store(delta_ptr + row_base + row, delta, mask=row < q_len)
    sum_row = (b.to(tl.int64) * Hq + h) * tl.cdiv(q_total, BLOCK_M) * BLOCK_M
    if (BLOCK_N > 64) & (q_len <= COUNTED):
        tl.store(taken_ptr + 1 + (sum_row + q_start) // BLOCK_M, 0)
    else:
        PIECES: tl.constexpr = (D + PIECE - 1) // PIECE
        place = (sum_row + q_start).to(tl.int64) * (PIECES * PIECE) + tl.arange(0, BLOCK_M * PIECE)
        for piece in tl.static_range(PIECES):
            tl.store(dq_sum_ptr + place + piece * BLOCK_M * PIECE, tl.zeros([BLOCK_M * PIECE], tl.float32))


@gluon.jit
def by_threads(x):
    """The 64 rows of a product in the order of threads, each of which has groups of four floats, 16 bytes."""
    return x.reshape([4, 2, 8, x.shape[1] // 8, 4, 2]).permute([3, 0, 2, 4, 1, 5]).reshape([x.shape[1] // 4, 256])


@gluon.jit
def load_values(v_tile, SCORES: gl.constexpr):
    """A tile of values; with 128 columns, half of it in registers, as a step is bound by reads of shared memory."""
    if v_tile.shape[1] == 128:
        return v_tile.slice(0, 64, 1).load(gl.DotOperandLayout(0, SCORES, 2)), v_tile.slice(64, 64, 1)
    else:
        return v_tile


@gluon.jit
def values_product(v_tile, dout_tile, zeros):
    """Issue, without waiting, the product of a tile of values and one of dout."""
    if dout_tile.shape[1] == 128:
        v_held, v_shared = v_tile
        weighing = warpgroup_mma(v_held, dout_tile.slice(0, 64, 1).permute((1, 0)), zeros, use_acc=False, is_async=True)
        return warpgroup_mma(v_shared, dout_tile.slice(64, 64, 1).permute((1, 0)), weighing, is_async=True)
    else:
        return warpgroup_mma(v_tile, dout_tile.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def accumulate(
    at, dk, dv, keys_of, v_tile, exchange, queries, terms, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, STAGES: tl.constexpr, SCORES: tl.constexpr, OUT: tl.constexpr, WORKER: tl.constexpr,
    mixed
):  # fmt: skip
    """Update dK and dV of a worker's keys with one tile of queries; compute its half of the program's share of dQ."""
    factors, factors_ready, shares, shares_ready, shares_read = exchange
    q_buffer, q_ready, dout_buffer, lse_buffer, delta_buffer, dout_ready, free = queries
    # unsigned numbers take fewer instructions, which pays off up to 64 columns
    walked = tl.cast(at, tl.uint32) if BLOCK_D <= 64 else at
    stage, phase = tl.cast(walked % STAGES, tl.int32), tl.cast(walked // STAGES & 1, tl.int32)
    k_len, scale_log2, k_pos = terms
    zeros = gl.full([64, BLOCK_M], 0.0, gl.float32, SCORES)
    q_tile, dout_tile = matrix(q_buffer, stage), matrix(dout_buffer, stage)
    mbarrier.wait(q_ready.index(stage), phase)
    scoring = warpgroup_mma(keys_of[WORKER], q_tile.permute((1, 0)), zeros, use_acc=False, is_async=True)
    mbarrier.wait(dout_ready.index(stage), phase)
    weighing = values_product(v_tile, dout_tile, zeros)
    score = warpgroup_mma_wait(1, [scoring])
    if mixed:
        keep = (k_pos < k_len)[:, None]
        score = tl.where(keep, score, float("-inf"))
    # [BLOCK_M]
    lse = lse_buffer.index(stage).load(gl.SliceLayout(0, SCORES))
    p = tl.exp2(score * scale_log2 - lse[None, :])  # [64, BLOCK_M]
    dp = warpgroup_mma_wait(0, [weighing])
    # [BLOCK_M]
    delta = delta_buffer.index(stage).load(gl.SliceLayout(0, SCORES))
    ds = p * (dp - delta[None, :])  # [64, BLOCK_M]
    ds = ds.to(q_buffer.dtype)
    turn = at & 1
    factors.index(turn * 2 + WORKER).permute((1, 0)).store(ds)
    FACTORS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    adding_dv = warpgroup_mma(gl.convert_layout(p.to(q_buffer.dtype), FACTORS), dout_tile, dv, is_async=True)
    # dQ needs dS of both workers; the barrier also says that the previous shares have been read
    fence_async_shared()
    mbarrier.arrive(factors_ready.index(turn), count=1)
    mbarrier.wait(factors_ready.index(turn), at >> 1 & 1)
    # this worker computes a piece of dQ: 64 rows, and up to 64 columns
    PIECES: gl.constexpr = (BLOCK_D + 63) // 64
    PIECE: gl.constexpr = BLOCK_D // PIECES
    AHEAD: gl.constexpr = WORKER // PIECES * 64
    ASIDE: gl.constexpr = WORKER % PIECES * PIECE
    SHARE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PIECE, 16])
    share = gl.full([64, PIECE], 0.0, gl.float32, SHARE)
    for i in gl.static_range(BLOCK_N // 64):
        left = factors.index(turn * 2 + i).slice(AHEAD, 64, 0)
        share = warpgroup_mma(left, keys_of[i].slice(ASIDE, PIECE, 1), share, use_acc=i > 0, is_async=True)
    adding_dk = warpgroup_mma(gl.convert_layout(ds, FACTORS), q_tile, dk, is_async=True)
    share, dv = warpgroup_mma_wait(1, [share, adding_dv])
    shares.index(WORKER).store(by_threads(share))
    fence_async_shared()
    mbarrier.arrive(shares_ready.index(WORKER), count=1)
    dk = warpgroup_mma_wait(0, [adding_dk])
    mbarrier.arrive(free.index(stage), count=1)
    return at + 1, dk, dv


@gluon.jit
def hand_on(places, stage, tile, b, head):
    """Tell workers which tile of which head a stage holds."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    places.index(stage * 3).store(gl.full([1], tile, gl.int32, ONE))
    places.index(stage * 3 + 1).store(gl.full([1], b, gl.int32, ONE))
    places.index(stage * 3 + 2).store(gl.full([1], head, gl.int32, ONE))


@gluon.jit
def handed_on(number):
    """Read a number from shared memory."""
    return tl.max(number.load(gl.BlockedLayout([1], [32], [gl.num_warps()], [0])), 0)


@gluon.jit
def next_place(begun, ready, places, STAGES: gl.constexpr):
    """The next tile, once it is `ready`, with its batch entry and head; a negative number after the last tile."""
    stage = begun % STAGES
    mbarrier.wait(ready.index(stage), begun // STAGES & 1)
    place = stage * 3
    return handed_on(places.index(place)), handed_on(places.index(place + 1)), handed_on(places.index(place + 2))


@gluon.jit
def work(
    arguments, keys, turns, exchange, queries, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    K_STAGES: tl.constexpr, WORKERS: tl.constexpr, WORKER: tl.constexpr
):  # fmt: skip
    """Store dK and dV of 64 keys of each tile that this program takes."""
    (
        dk_ptr, dv_ptr, entries_ptr, q_total, k_total, Hq, scale, tiles, group, grouped, joined
    ) = arguments  # fmt: skip
    k_buffer, v_buffer, kv_ready = keys
    kv_free, places = turns
    factors, factors_ready, shares, shares_ready, shares_read = exchange
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BLOCK_D, BLOCK_D // 8], [4, 1], [1, 0])
    ROWS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, BLOCK_D], v_buffer.dtype)
    at = 0  # tiles of queries so far
    begun = 0  # tiles of keys so far
    if K_STAGES > 1:
        tile, b, kv_h = next_place(begun, kv_ready, places, K_STAGES)
    else:
        tile, b, kv_h = place_of(tl.program_id(0), Hq // GROUP, tiles, group, grouped, joined)
    while tile >= 0:
        stage = begun % K_STAGES
        Hkv = Hq // GROUP
        k_start = tile * BLOCK_N
        q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
        if k_start < k_len:
            # [64]
            k_pos = k_start + WORKER * 64 + gl.arange(0, 64, gl.SliceLayout(1, SCORES))
            scale_log2 = scale * LOG2E
            # [64, BLOCK_D]
            dk = gl.full([64, BLOCK_D], 0.0, gl.float32, OUT)
            dv = gl.full([64, BLOCK_DV], 0.0, gl.float32, OUT)
            keys_of = (matrix(k_buffer, stage * WORKERS), matrix(k_buffer, stage * WORKERS + 1))
            mbarrier.wait(kv_ready.index(stage), begun // K_STAGES & 1)
            v_tile = load_values(matrix(v_buffer, stage * WORKERS + WORKER), SCORES)
            first, _, _, last = query_tiles(q_len, BLOCK_M)
            for _ in tl.range(kv_h * GROUP, (kv_h + 1) * GROUP):
                terms = (k_len, scale_log2, k_pos)
                if k_start + BLOCK_N <= k_len:
                    for _ in tl.range(first, last):
                        at, dk, dv = accumulate(
                            at, dk, dv, keys_of, v_tile, exchange, queries, terms, BLOCK_M, BLOCK_N, BLOCK_D, STAGES, SCORES, OUT,
                            WORKER, mixed=False
                        )  # fmt: skip
                else:
                    for _ in tl.range(first, last):
                        at, dk, dv = accumulate(
                            at, dk, dv, keys_of, v_tile, exchange, queries, terms, BLOCK_M, BLOCK_N, BLOCK_D, STAGES, SCORES, OUT,
                            WORKER, mixed=True
                        )  # fmt: skip
            mbarrier.arrive(kv_free.index(stage), count=1)

            # through the shared memory of the last share, once that is read, so that threads store 16 bytes at a time
            mbarrier.wait(shares_read, at & 1 ^ 1)
            PARTS: gl.constexpr = shares.shape[1] * 8 // BLOCK_D  # a worker's rows use the first part of its share
            rows = view(shares, v_buffer.dtype, [WORKERS * PARTS, 64, BLOCK_D], ROWS).index(WORKER * PARTS)
            first_row = (b.to(tl.int64) * k_total + k_offset) * Hkv + kv_h
            row = k_start + WORKER * 64
            rows.store((dk * scale).to(v_buffer.dtype))
            store_rows(dk_ptr + first_row * D, Hkv * D, rows.load(WIDE), row, k_len, D)
            rows.store(dv.to(v_buffer.dtype))
            store_rows(dv_ptr + first_row * DV, Hkv * DV, rows.load(WIDE), row, k_len, DV)
        else:
            mbarrier.arrive(kv_free.index(stage), count=1)
        begun += 1
        if K_STAGES > 1:
            tile, b, kv_h = next_place(begun, kv_ready, places, K_STAGES)
        else:
            tile = -1


@gluon.jit
def by_lanes(ptr):
    """The same address in each thread of a warp."""
    return (ptr + gl.full([32], 0, gl.int32, gl.BlockedLayout([1], [32], [1], [0]))).to(gl.int64)


@gluon.jit
def count_in(count_ptr):
    """Count this program; return the count before. If that was not 0, wait until the first program's share is stored.

    The first one waits for no other between counting itself and storing its share, so there is no deadlock.
    """
    code: gl.constexpr = (
        "{.reg .pred p; .reg .u32 now; mov.u32 now, %laneid; setp.eq.u32 p, now, 0;"
        "@p atom.acquire.gpu.global.add.u32 now, [$1], 1; shfl.sync.idx.b32 $0, now, 0, 31, 0xffffffff;"
        "setp.eq.u32 p, $0, 0; @p bra done; mov.u32 now, $0; again: setp.ge.u32 p, now, 16777216; @p bra stored;"
        "ld.acquire.gpu.global.u32 now, [$1]; bra again; stored: fence.proxy.async.global; done:}"
    )
    return tl.max(gl.inline_asm_elementwise(code, "=&r,l", [by_lanes(count_ptr)], gl.int32, False, 1), 0)


@gluon.jit
def tell_stored(count_ptr):
    """Tell other programs that this one's share is stored, once it is."""
    code: gl.constexpr = (
        "{.reg .pred p; .reg .u32 lane; cp.async.bulk.wait_group 0; bar.warp.sync 0xffffffff; mov.u32 lane, %laneid;"
        "setp.eq.u32 p, lane, 0; @p red.release.gpu.global.add.u32 [$1], 16777216; mov.u32 $0, 0;}"
    )
    gl.inline_asm_elementwise(code, "=&r,l", [by_lanes(count_ptr)], gl.int32, False, 1)


@gluon.jit
def add_share(
    at, place, q_len, exchange, dq_sum_desc, taken_ptr, WORKERS: tl.constexpr
):  # fmt: skip
    """Have the program's share of one tile of dQ added, or stored if it is the first, and signal that it is read."""
    factors, factors_ready, shares, shares_ready, shares_read = exchange
    count_ptr = taken_ptr + 1 + place // WORKERS
    before = 1
    if q_len <= COUNTED:
        before = count_in(count_ptr)
    for worker in gl.static_range(WORKERS):
        mbarrier.wait(shares_ready.index(worker), at & 1)
        if before == 0:
            store_tile(dq_sum_desc, [(place + worker) * shares.shape[1], 0], shares.index(worker))
        else:
            add_tile(dq_sum_desc, [(place + worker) * shares.shape[1], 0], shares.index(worker))
    tma.store_wait(0)
    # first the barrier at the end of the loop: a worker two steps ahead would mistake the previous round for this one
    mbarrier.arrive(shares_read, count=1)
    mbarrier.arrive(factors_ready.index(at + 1 & 1), count=1)
    if before == 0:
        tell_stored(count_ptr)
    return at + 1


@gluon.jit
def add_shares(
    counted, keys, turns, exchange, dq_sum_desc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_D: tl.constexpr, K_STAGES: tl.constexpr, WORKERS: tl.constexpr
):  # fmt: skip
    """Send all shares of dQ that the workers compute to memory."""
    taken_ptr, entries_ptr, q_total, k_total, Hq, tiles, group, grouped, joined = counted
    k_buffer, v_buffer, kv_ready = keys
    kv_free, places = turns
    factors, factors_ready, shares, shares_ready, shares_read = exchange
    mbarrier.arrive(factors_ready.index(0), count=1)  # no share precedes the first
    at = 0  # tiles of queries so far
    begun = 0  # tiles of keys so far
    if K_STAGES > 1:
        tile, b, kv_h = next_place(begun, kv_ready, places, K_STAGES)
    else:
        tile, b, kv_h = place_of(tl.program_id(0), Hq // GROUP, tiles, group, grouped, joined)
    while tile >= 0:
        mbarrier.arrive(kv_free.index(begun % K_STAGES), count=1)
        k_start = tile * BLOCK_N
        q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
        if k_start < k_len:
            first, _, _, last = query_tiles(q_len, BLOCK_M)
            for h in tl.range(kv_h * GROUP, (kv_h + 1) * GROUP):
                sum_tile = (
                    (b.to(tl.int64) * Hq + h) * tl.cdiv(q_total, BLOCK_M) * BLOCK_M // 64 * ((BLOCK_D + 63) // 64)
                ).to(tl.int32)
                for i in tl.range(first, last):
                    q_start = i * BLOCK_M
                    at = add_share(
                        at, sum_tile + q_start // 64 * ((BLOCK_D + 63) // 64), q_len, exchange, dq_sum_desc, taken_ptr, WORKERS
                    )  # fmt: skip
        begun += 1
        if K_STAGES > 1:
            tile, b, kv_h = next_place(begun, kv_ready, places, K_STAGES)
        else:
            tile = -1


@gluon.jit
def load_queries(
    at, ends, q_start, q_desc, dout_desc, lse_ptr, delta_ptr, row_base, b, q_offset, entries_ptr, come, h, q_len,
    queries, BLOCK_M: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    """Copy one tile of queries and of dout, with LSE and delta of its rows."""
    q_buffer, q_ready, dout_buffer, lse_buffer, delta_buffer, dout_ready, free = queries
    stage, phase = at % STAGES, at // STAGES & 1
    row = q_start + gl.arange(0, BLOCK_M, gl.BlockedLayout([BLOCK_M // 32], [32], [1], [0]))
    lse = tl.load(lse_ptr + row_base + row, mask=row < q_len, other=float("inf"))
    delta = tl.load(delta_ptr + row_base + row, mask=row < q_len, other=0.0)
    mbarrier.wait(free.index(stage), phase ^ 1)
    rows = [b, h, q_offset + q_start, 0]
    if entries_ptr is not None and q_start + BLOCK_M > q_len:
        # clear what lies behind the sequence: 0 times a NaN would be NaN
        mbarrier.expect(come, q_desc.block_type.nbytes)
        copy_tile(q_desc, rows, come, q_buffer.index(stage))
        mbarrier.wait(come, ends & 1)
        ends += 1
        clear_behind(matrix(q_buffer, stage), q_len - q_start, BLOCK_M)
        mbarrier.arrive(q_ready.index(stage), count=1)
        mbarrier.expect(come, dout_desc.block_type.nbytes)
        copy_tile(dout_desc, rows, come, dout_buffer.index(stage))
        mbarrier.wait(come, ends & 1)
        ends += 1
        clear_behind(matrix(dout_buffer, stage), q_len - q_start, BLOCK_M)
        mbarrier.arrive(dout_ready.index(stage), count=1)
    else:
        mbarrier.expect(q_ready.index(stage), q_desc.block_type.nbytes)
        copy_tile(q_desc, rows, q_ready.index(stage), q_buffer.index(stage))
        mbarrier.expect(dout_ready.index(stage), dout_desc.block_type.nbytes)
        copy_tile(dout_desc, rows, dout_ready.index(stage), dout_buffer.index(stage))
    lse_buffer.index(stage).store(lse)
    delta_buffer.index(stage).store(delta)
    mbarrier.arrive(dout_ready.index(stage), count=1)
    return at + 1, ends


@gluon.jit
def place_of(place, Hkv, tiles, group, grouped, joined):
    """The tile of keys at a place in the order of all tiles, its batch entry and its head, one of Hkv."""
    behind = place - grouped * tiles  # from 0 on: tiles of the last heads, a single group
    first = tl.where(behind < 0, 0, grouped)
    place = tl.where(behind < 0, place, behind)
    group = tl.where(behind < 0, group, joined)
    head = first + place // (group * tiles) * group + place % group
    tile = place // group % tiles
    b, head = head // Hkv, head % Hkv
    return tile, b, head


@gluon.jit
def load_tiles(
    lengths, keys, turns, queries, q_desc, k_desc, v_desc, dout_desc, come, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, GROUP: tl.constexpr, K_STAGES: tl.constexpr,
    WORKERS: tl.constexpr
):  # fmt: skip
    """Copy the tiles of keys, values and queries that the workers need, in their order."""
    (
        lse_ptr, delta_ptr, taken_ptr, entries_ptr, q_total, k_total, Hq, items, tiles, group, grouped,
        joined
    ) = lengths  # fmt: skip
    k_buffer, v_buffer, kv_ready = keys
    at = 0  # tiles of queries so far
    begun = 0  # tiles of keys so far
    ends = 0  # ends of sequences so far
    place = tl.program_id(0)
    while place < items:
        tile, b, kv_h = place_of(place, Hq // GROUP, tiles, group, grouped, joined)
        k_start = tile * BLOCK_N
        q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
        stage = begun % K_STAGES
        if K_STAGES > 1:
            kv_free, places = turns
            mbarrier.wait(kv_free.index(stage), begun // K_STAGES & 1 ^ 1)
            hand_on(places, stage, tile, b, kv_h)
            mbarrier.arrive(kv_ready.index(stage), count=1)
        if k_start < k_len:
            if entries_ptr is not None and k_start + BLOCK_N > k_len:
                # clear what lies behind the sequence: 0 times a NaN would be NaN
                mbarrier.expect(come, WORKERS * (k_desc.block_type.nbytes + v_desc.block_type.nbytes))
                for worker in gl.static_range(0, WORKERS):
                    rows = [b, kv_h, k_offset + k_start + worker * 64, 0]
                    copy_tile(k_desc, rows, come, k_buffer.index(stage * WORKERS + worker))
                    copy_tile(v_desc, rows, come, v_buffer.index(stage * WORKERS + worker))
                mbarrier.wait(come, ends & 1)
                ends += 1
                for worker in gl.static_range(0, WORKERS):
                    clear_behind(matrix(k_buffer, stage * WORKERS + worker), k_len - k_start - worker * 64, 64)
                    clear_behind(matrix(v_buffer, stage * WORKERS + worker), k_len - k_start - worker * 64, 64)
                mbarrier.arrive(kv_ready.index(stage), count=1)
            else:
                mbarrier.expect(kv_ready.index(stage), WORKERS * (k_desc.block_type.nbytes + v_desc.block_type.nbytes))
                for worker in gl.static_range(0, WORKERS):
                    rows = [b, kv_h, k_offset + k_start + worker * 64, 0]
                    copy_tile(k_desc, rows, kv_ready.index(stage), k_buffer.index(stage * WORKERS + worker))
                    copy_tile(v_desc, rows, kv_ready.index(stage), v_buffer.index(stage * WORKERS + worker))
            first, _, _, last = query_tiles(q_len, BLOCK_M)
            for h in tl.range(kv_h * GROUP, (kv_h + 1) * GROUP):
                row_base = (b.to(tl.int64) * Hq + h) * q_total + q_offset
                for i in tl.range(first, last):
                    q_start = i * BLOCK_M
                    at, ends = load_queries(
                        at, ends, q_start, q_desc, dout_desc, lse_ptr, delta_ptr, row_base, b, q_offset, entries_ptr, come, h,
                        q_len, queries, BLOCK_M, STAGES
                    )  # fmt: skip
        else:
            mbarrier.arrive(kv_ready.index(stage), count=1)
        begun += 1
        if K_STAGES > 1:
            place = tl.num_programs(0) + tl.atomic_add(taken_ptr, 1, sem="relaxed")
        else:
            place = items
    if K_STAGES > 1:
        kv_free, places = turns
        stage = begun % K_STAGES
        mbarrier.wait(kv_free.index(stage), begun // K_STAGES & 1 ^ 1)
        hand_on(places, stage, -1, 0, 0)
        mbarrier.arrive(kv_ready.index(stage), count=2)


@gluon.jit(do_not_specialize=["q_total", "k_total", "Hq", "items", "tiles", "group", "grouped", "joined"])
def backward(
    q_desc, k_desc, v_desc, dout_desc, dq_sum_desc, lse_ptr, delta_ptr, dk_ptr, dv_ptr, taken_ptr, entries_ptr,
    scale, q_total, k_total, Hq, items, tiles, group, grouped, joined, GROUP: tl.constexpr, D: tl.constexpr,
    DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    STAGES: tl.constexpr, K_STAGES: tl.constexpr
):  # fmt: skip
    """Store dK and dV of all tiles of keys, summed over the query heads that read them, and add to dQ."""
    # dQ of a tile of queries is split into pieces, one for each worker
    PIECES: gl.constexpr = (BLOCK_D + 63) // 64
    gl.static_assert(
        (BLOCK_N == 128) & (BLOCK_M * PIECES == 128), "two workers have 128 keys, and one of two pieces of dQ each"
    )
    WORKERS: gl.constexpr = BLOCK_N // 64
    k_buffer = gl.allocate_shared_memory(k_desc.dtype, [K_STAGES * WORKERS, 1, 1, 64, BLOCK_D], k_desc.layout)
    v_buffer = gl.allocate_shared_memory(v_desc.dtype, [K_STAGES * WORKERS, 1, 1, 64, BLOCK_DV], v_desc.layout)
    q_buffer = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_D], q_desc.layout)
    dout_buffer = gl.allocate_shared_memory(dout_desc.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DV], dout_desc.layout)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    lse_buffer = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], PLAIN)
    delta_buffer = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], PLAIN)
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, 64], q_desc.dtype)
    factors = gl.allocate_shared_memory(q_desc.dtype, [2 * WORKERS, BLOCK_M, 64], TILE)
    shares = gl.allocate_shared_memory(gl.float32, [WORKERS, BLOCK_D // PIECES // 4, 256], dq_sum_desc.layout)
    # in persistent programs, all warps are told which tile a stage of keys holds
    keys = (k_buffer, v_buffer, barriers(K_STAGES, 2 if K_STAGES > 1 else 1))
    turns = (barriers(K_STAGES, WORKERS + 1), gl.allocate_shared_memory(gl.int32, [K_STAGES * 3, 1], PLAIN))
    exchange = (factors, barriers(2, WORKERS + 1), shares, barriers(WORKERS, 1), barriers(1, 1).index(0))
    queries = (
        q_buffer, barriers(STAGES, 1), dout_buffer, lse_buffer, delta_buffer, barriers(STAGES, 2),
        barriers(STAGES, WORKERS)
    )  # fmt: skip
    come = () if entries_ptr is None else barriers(1, 1).index(0)
    fence_async_shared()
    arguments = (
        dk_ptr, dv_ptr, entries_ptr, q_total, k_total, Hq, scale, tiles, group, grouped, joined
    )  # fmt: skip
    lengths = (
        lse_ptr, delta_ptr, taken_ptr, entries_ptr, q_total, k_total, Hq, items, tiles, group, grouped,
        joined
    )  # fmt: skip
    counted = (taken_ptr, entries_ptr, q_total, k_total, Hq, tiles, group, grouped, joined)
    # workers get the registers that the single warps do not need
    gl.warp_specialize(
        [
            (work, (
                arguments, keys, turns, exchange, queries, BLOCK_M, BLOCK_N, STAGES, GROUP, D, DV, BLOCK_D,
                BLOCK_DV, K_STAGES, WORKERS, 0
            )),
            (work, (
                arguments, keys, turns, exchange, queries, BLOCK_M, BLOCK_N, STAGES, GROUP, D, DV, BLOCK_D,
                BLOCK_DV, K_STAGES, WORKERS, 1
            )),
            (load_tiles, (
                lengths, keys, turns, queries, q_desc, k_desc, v_desc, dout_desc, come, BLOCK_M, BLOCK_N, STAGES,
                GROUP, K_STAGES, WORKERS
            )),
            (add_shares, (
                counted, keys, turns, exchange, dq_sum_desc, BLOCK_M, BLOCK_N, GROUP, BLOCK_D, K_STAGES, WORKERS
            )),
        ],
        [4, 1, 1], [240, 24, 24],
    )  # fmt: skip


@triton.jit(do_not_specialize=["q_total", "k_total", "Hq"])
def finish(
    dq_sum_ptr, taken_ptr, dq_ptr, entries_ptr, scale, q_total, k_total, Hq, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PIECE: tl.constexpr, TILE_AXIS: tl.constexpr
):  # fmt: skip
    """Store dQ of one tile of queries of one head: turn pieces of 64 rows in the register order of products into rows."""
    tile = tl.program_id(TILE_AXIS)
    b, h = batch_and_head(Hq, TILE_AXIS)
    q_start = tile * BLOCK_M
    q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
    if entries_ptr is not None:
        if q_start >= q_len:
            return
    sum_row = (b.to(tl.int64) * Hq + h) * tl.cdiv(q_total, BLOCK_M) * BLOCK_M
    first_row = (b.to(tl.int64) * q_total + q_offset) * Hq + h
    # if programs are counted and none has reached this tile, nothing was ever written
    mask = (BLOCK_N > 64) & (q_len <= COUNTED)
    count = tl.load(taken_ptr + 1 + (sum_row + q_start) // BLOCK_M, mask=mask, other=1)
    PIECES: tl.constexpr = (D + PIECE - 1) // PIECE
    for piece in tl.static_range(PIECES):
        source = (sum_row + q_start) // 64 * PIECES + tl.arange(0, BLOCK_M // 64) * PIECES + piece
        # [BLOCK_M // 64, 64 * PIECE]
        place = dq_sum_ptr + source.to(tl.int64)[:, None] * (64 * PIECE) + tl.arange(0, 64 * PIECE)[None, :]
        dq = tl.load(place, mask=count > 0, other=0.0)
        # [BLOCK_M, PIECE]: in a product's result a thread has two neighbours of a row, and those of the row eight below
        dq = (
            dq.reshape([BLOCK_M // 64, PIECE // 8, 4, 8, 4, 2, 2])
            .permute(0, 2, 5, 3, 1, 4, 6)
            .reshape([BLOCK_M, PIECE])
        )
        place = dq_ptr + first_row * D + piece * PIECE
        kernels.store_rows(place, Hq * D, dq * scale, q_start, q_len, D - piece * PIECE)
