# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_rope.yaml
#   content hash  68b272fd4bfdebd4
#   text hash     7ab3f6b362be7a09
#   render with   attnforge render specs/packed_rope.yaml
"""The forward pass of kernels.py for Hopper GPUs, in Gluon; the formulas and names stand at the head of that file.

Programs take items as they have time: tiles of BLOCK_M queries, those of a group of heads from the last row back. In
each program one warp loads, and workers of four warps take 64 of the queries each, side by side:

    load_tiles   waits until a stage of a buffer is free, and has the next tile of keys or of values copied into it
    work         for each tile of keys: the product that makes its scores, and without a wait the one that adds the
                 weighted values of the tile before; then the weights of the first

A stage is ready once all its bytes have come, and free once every worker is done with it; a barrier counts each.
Tiles of keys are visited from the last to the first: mixed ones, then full ones.
With bfloat16 a row's weights are measured from 2**63 times the largest one of the first tile that shows it a key: full
tiles need no search for larger ones. If a row's weights add up to more than 2 by that, its LSE becomes NaN, and its
tile is done once more; such rows then follow their largest score.

Layouts
    SCORES     [64, BLOCK_N] in registers, as a product leaves them; a quad of threads holds a row
    OUT        [64, BLOCK_DV], likewise
    WEIGHTS    [64, BLOCK_N] as the left operand of the product that makes OUT
    SUMS       [64, 8]: each thread adds up its own columns of SCORES
    WIDE       [64, BLOCK_DV], 16 bytes of a row in each thread, as memory takes them

Symbols
    items, item        tiles of queries of all heads, and the number of one
    slots, slot        room for tiles of queries of a head, and the number of such a place
    group              heads of a group
    coming             the next item, taken while the one at hand is loaded
    places             for each stage of queries which tile, sequence and head they are of
    number             twice the tile, and one more if it is done again
    again              1 if the tile is done again, as rows have outgrown their first keys
    idle               how many stages in a row had no tile
    room               tiles of a sequence, or one more
    STAGES, Q_STAGES   stages of the buffers of keys and of values, and of that of queries
    queries, buffers   the buffer of queries with its barriers; those of keys and of values
    WORKERS            how many workers a program has
    WORKER             which of the workers this is
    arguments          what workers take of the kernel's parameters
    lengths            what the loader takes of the kernel's parameters
    terms              a tuple that a worker, or the loader, makes for its steps: what none of them changes
    x_buffer           tiles of x in shared memory, by stage
    x_ready            for each of its stages a barrier that the tile has come
    x_free             for each of its stages a barrier that all workers are done with the tile
    scale_log2         scale * LOG2E
    at                 tiles of the walk so far: this one has stage at % STAGES, in round at // STAGES
    phase              a round's last bit: by it a barrier tells the round that a wait is for from the one before
    ends               tiles so far that reach into the next sequence
    v_come             a barrier that such a tile has come: the loader clears rows before workers see it
    visits             walks so far that had a tile
    low, high          ends of the tiles of keys that rows of any worker see
    begun              tiles of queries so far: this one has stage begun % Q_STAGES
    others             the tile whose rows make scores with those of a tile of queries, or of keys
    before             the stage of the tile before
    turns              a barrier for each of three workers: it is its turn to issue products
    packed             the weights of the tile before, two in each int32
    OVERLAPPED         whether the product of the values before runs on while scores are weighed
    rest               tiles before it are still to come
    grows              whether m follows a row's largest score: with float16 always, else if it has outgrown its first
                       keys
    STEADY             whether m stays what it is for all rows of a tile
    outgrown           whether a row's weights add up to too much of what they are measured from
    verdicts           for each stage and worker which rows have outgrown their first keys
    first_lse          what the first pass left in the place of the LSE
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait
)  # fmt: skip

from . import runtime
from .kernels import LOG2E, find_rows, key_tiles, partial_row_sums

copy_tile = runtime.gluon_copy_of_tiles()


@gluon.jit
def take_next(lse_ptr, q_rows, items):
    """The number of an item that no program has taken, or one behind the last.

    They count in a place of the LSE that no sequence has, from the bits of infinity on: who takes the last puts these back.
    """
    taken_ptr = tl.cast(lse_ptr + q_rows - 1, tl.pointer_type(tl.int32), bitcast=True)
    taken = tl.atomic_add(taken_ptr, 1, sem="relaxed") - 0x7F800000
    if taken == items - 1:
        tl.store(taken_ptr, 0x7F800000)
    return tl.num_programs(0) + taken


@gluon.jit
def find_tile(cu_seqlens_ptr, slot, sequences, ROWS: gl.constexpr):
    """The sequence that a slot belongs to by `cu_seqlens_ptr`, and which of its tiles it is.

    Sequence b, which begins in row n, has slots from n // ROWS + b on: as many as it has tiles, or one more. The first one
    has those before it as well, the last one those behind. Each thread of a warp looks at one of 32 of those that come into question.
    """
    b, begin, count = 0, 0, sequences
    while count > 1:
        count = tl.cdiv(count, 32)
        number = b + count * gl.arange(0, 32, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
        row = tl.load(cu_seqlens_ptr + number, mask=number < sequences, other=2**31 - 1)
        begins = tl.where(number == 0, 0, row // ROWS + number)
        b = tl.max(tl.where(begins <= slot, number, b), 0)
        begin = tl.max(tl.where(begins <= slot, begins, 0), 0)
    return b, slot - begin


@gluon.jit
def hand_on(places, stage, tile, b, head):
    """Tell workers which tile of which head a stage has."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    places.index(stage * 3).store(gl.full([1], tile, gl.int32, ONE))
    places.index(stage * 3 + 1).store(gl.full([1], b, gl.int32, ONE))
    places.index(stage * 3 + 2).store(gl.full([1], head, gl.int32, ONE))


@gluon.jit
def handed_on(number):
    """A number in shared memory."""
    return tl.max(number.load(gl.BlockedLayout([1], [32], [gl.num_warps()], [0])), 0)


@gluon.jit
def next_place(begun, ready, places, STAGES: gl.constexpr):
    """The next tile, once `ready` tells that it has come, its batch entry and its head; a number below 0 after the last."""
    stage = begun % STAGES
    mbarrier.wait(ready.index(stage), begun // STAGES & 1)
    place = stage * 3
    return handed_on(places.index(place)), handed_on(places.index(place + 1)), handed_on(places.index(place + 2))


NO_TILE = tl.constexpr(2**20)  # behind the last one of any sequence


@gluon.jit
def verdict_buffer(COUNT: gl.constexpr):
    """COUNT times what a worker tells of its 64 rows: 1 where one has outgrown its first keys."""
    made = gl.allocate_shared_memory(gl.int32, [COUNT, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    for i in gl.static_range(COUNT):
        made.index(i).store(gl.full([64], 0, gl.int32, gl.BlockedLayout([1], [32], [gl.num_warps()], [0])))
    return made


@gluon.jit
def outgrew(verdicts, stage, WORKERS: gl.constexpr):
    """What workers have told of their 64 rows of a stage each, joined: 0 if none has outgrown its first keys."""
    found = 0
    for worker in gl.static_range(WORKERS):
        told = verdicts.index(stage * WORKERS + worker).load(gl.BlockedLayout([2], [32], [gl.num_warps()], [0]))
        found |= tl.reduce_or(told, 0)
    return found


@gluon.jit
def matrix(buffer, i):
    """Tile i of a buffer, by rows and columns."""
    tile = buffer.index(i)
    return tile.reshape([tile.shape[1], tile.shape[2]])


@gluon.jit
def score_product(rows, others, below, D: gl.constexpr, ADDS: gl.constexpr):
    """The product, not waited for, of the rows of two tiles, on top of `below` if it ADDS to that.

    It is made without the last 64 of 256 columns where they are empty.
    """
    if rows.shape[1] == 256 and D <= 192:
        left, right = rows.slice(0, 128, 1), others.slice(0, 128, 1).permute((1, 0))
        scoring = warpgroup_mma(left, right, below, use_acc=ADDS, is_async=True)
        left, right = rows.slice(128, 64, 1), others.slice(128, 64, 1).permute((1, 0))
        return warpgroup_mma(left, right, scoring, is_async=True)
    else:
        return warpgroup_mma(rows, others.permute((1, 0)), below, use_acc=ADDS, is_async=True)


@gluon.jit
def pack(p, dtype: gl.constexpr):
    """Two weights of 16 bits, as `dtype`, in each int32: so they pass from step to step without being taken apart."""
    even, odd = gl.split(p.reshape([p.shape[0], p.shape[1] // 2, 2]))
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [even, odd], gl.int32, True, 1)
    else:
        return gl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [even, odd], gl.int32, True, 1)


@gluon.jit
def unpack(packed, dtype: gl.constexpr, WEIGHTS: gl.constexpr):
    """The weights, of type `dtype`, as the left operand of a product."""
    even = packed.to(gl.uint16).to(dtype, bitcast=True)
    odd = (packed >> 16).to(gl.uint16).to(dtype, bitcast=True)
    return gl.convert_layout(gl.join(even, odd).reshape([packed.shape[0], packed.shape[1] * 2]), WEIGHTS)


@gluon.jit
def of_registers(COLUMNS: gl.constexpr, SCORES: gl.constexpr):
    """[64, COLUMNS], column - row, less what all registers of a thread have in common: the compiler knows it of each."""
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, SCORES)) & ~6
    return column[None, :] - (gl.arange(0, 64, gl.SliceLayout(1, SCORES)) & 8)[:, None]


@gluon.jit
def apart(x):
    """Integers as the compiler knows nothing of them: it would make bits of a word of comparisons of distances."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], gl.int32, True, 1)


@triton.constexpr_function
def operands(result, results, inputs, given="f"):
    """The constraints of PTX that has so many results and inputs, floats or words: `=&` where a result is written early."""
    return ",".join([result] * results + [given] * inputs)


@triton.constexpr_function
def watching(count):
    """PTX that goes on once `count` values of a thread are there; its branch is never taken: no arithmetic gives that NaN."""
    found = [f"setp.eq{'.or' * (i > 0)}.s32 p, ${count + i}, 0x7fc12345{', p' * (i > 0)};" for i in range(count)]
    lines = [
        "{",
        ".reg .pred p, any;",
        *found,
        "again:",
        "vote.sync.any.pred any, p, 0xffffffff;",
        "@any bra.uni again;",
    ]
    return "\n".join([*lines, *(f"mov.b32 ${i}, ${count + i};" for i in range(count)), "}"])


@gluon.jit
def in_order(x, COUNT: gl.constexpr):
    """Values x, COUNT in each thread, found before what follows begins: the assembler moves a wait up past all but a branch."""
    constraints: gl.constexpr = operands("=&r", COUNT, COUNT, "r")
    return gl.inline_asm_elementwise(watching(COUNT), constraints, [x], gl.float32, False, COUNT)


@triton.constexpr_function
def shrinking(count):
    """PTX that multiplies `count` values of a thread by factors of their rows: a warp whose factors are all 1 is done sooner.

    As a product leaves them, a thread's values are in two rows, two of the first, two of the second, and so on.
    """
    lines = [
        "{",
        ".reg .pred p, any;",
        f"setp.neu.f32 p, ${2 * count}, 1.0;",
        f"setp.neu.or.f32 p, ${2 * count + 2}, 1.0, p;",
    ]
    lines += ["vote.sync.any.pred any, p, 0xffffffff;", *(f"mov.f32 ${i}, ${count + i};" for i in range(count))]
    lines += ["@!any bra.uni done;", *(f"mul.f32 ${i}, ${i}, ${2 * count + i};" for i in range(count))]
    return "\n".join([*lines, "done:", "}"])


@gluon.jit
def shrunk(acc, shrink):
    """The rows of acc, each times its factor: warps in which no row's largest score has grown have nothing to do."""
    COUNT: gl.constexpr = acc.shape[1] // 2  # of each of 128 threads
    return gl.inline_asm_elementwise(
        shrinking(COUNT), operands("=f", COUNT, 2 * COUNT), [acc, shrink[:, None]], gl.float32, False, COUNT
    )


@gluon.jit
def as_stored(out, q_tile, WIDE: gl.constexpr, Q_STAGES: gl.constexpr):
    """A tile of out with 16 bytes of a row in each thread: its values change threads in the memory of the queries.

    With one stage of these, the next ones already come there: values change threads of a warp, which keeps its rows.
    """
    if Q_STAGES == 1:
        return gl.convert_layout(out, gl.BlockedLayout([2, 8], [8, 4], [4, 1], [1, 0]))
    else:
        tile = q_tile.slice(0, out.shape[1], 1)
        tile.store(out)
        return tile.load(WIDE)


@gluon.jit
def store_rows(ptr, stride, x, first, count, WIDTH: gl.constexpr):
    """Store rows of a tile below row `count`, the first WIDTH columns of each."""
    row = first + gl.arange(0, x.shape[0], gl.SliceLayout(1, x.type.layout))
    column = gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
    inside = (row < count)[:, None] & (column < WIDTH)[None, :]
    tl.store(ptr + row.to(tl.int64)[:, None] * stride + column[None, :], x.to(ptr.dtype.element_ty), mask=inside)


@gluon.jit
def clear_rows(
    ptr, stride, b, sequences, offset, length, end, total, tile, tiles, WIDE: gl.constexpr, COLUMNS: gl.constexpr,
    WIDTH: gl.constexpr
):  # fmt: skip
    """Store zeros in rows that belong to no sequence: worker `tile` of `tiles` has a share of those near b.

    Of `total` rows the sequence has `length` from `offset` on; it has room up to row `end`.
    """
    zeros = gl.full([64, COLUMNS], 0.0, gl.float32, WIDE)
    # a sequence that is longer than told ends early; the last one has all rows behind it
    end = tl.where(b + 1 == sequences, total, end)
    for first in tl.range(offset + length + tile * 64, end, tiles * 64):
        store_rows(ptr, stride, zeros, first, end, WIDTH)
    # and the first one those before it
    before = tl.where(b == 0, offset, 0)
    for first in tl.range(tile * 64, before, tiles * 64):
        store_rows(ptr, stride, zeros, first, before, WIDTH)


@gluon.jit
def clear_behind(tile, count, ROWS: gl.constexpr):
    """Clear the rows of a tile of ROWS rows in shared memory from row `count` on, eight at a time."""
    # a warp that loads has few registers
    WIDTH: gl.constexpr = tile.shape[1]
    COLUMNS: gl.constexpr = 128 if WIDTH > 128 else WIDTH
    STRIP: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [1, 1], [1, 0])
    row = gl.arange(0, 8, gl.SliceLayout(1, STRIP))
    for first in gl.static_range(0, ROWS, 8):
        if count < first + 8:
            for column in gl.static_range(0, WIDTH, COLUMNS):
                strip = tile.slice(first, 8, 0).slice(column, COLUMNS, 1)
                strip.store(gl.where((row + first < count)[:, None], strip.load(STRIP), 0.0))
    fence_async_shared()


@gluon.jit
def weigh(
    m, grows, l, score, k_start, terms, BLOCK_N: tl.constexpr, OVERLAPPED: tl.constexpr, mixed
):  # fmt: skip
    """Weights of one tile of keys, and what `m` and the partial sums of their rows become by them."""
    scale_log2, q_pos = terms
    # [BLOCK_N]
    k_pos = k_start + gl.arange(0, BLOCK_N, gl.SliceLayout(0, score.type.layout))
    if mixed:
        distance = apart(q_pos[:, None] - k_pos[None, :])
        keep = distance >= 0  # causal
        score = tl.where(keep, score, float("-inf"))
    # [64]
    top = tl.max(score, 1) * scale_log2
    # a row keeps what its first keys gave, with room for larger scores, unless it has outgrown that
    top = tl.where(grows, top, top + 63.0)
    m_new = tl.where(grows | (m == float("-inf")), tl.maximum(m, top), m)
    if OVERLAPPED:
        m_new = in_order(m_new, 2)
    # a row that has seen no key yet keeps m = -inf: measure it from the least number, or -inf - -inf is NaN
    pivot = tl.maximum(m_new, -3.4028234e38)
    p = tl.exp2(score * scale_log2 - pivot[:, None])  # [64, BLOCK_N]
    shrink = tl.exp2(m - pivot)  # [64]
    l *= gl.convert_layout(shrink, gl.SliceLayout(1, l.type.layout))[:, None]
    l += gl.convert_layout(partial_row_sums(p), l.type.layout, assert_trivial=True)
    return m_new, l, p, shrink


@gluon.jit
def weigh_on(
    m, l, score, terms, OVERLAPPED: tl.constexpr
):  # fmt: skip
    """Weights of one tile of keys that all rows see, measured from what those before were, and partial sums with them."""
    scale_log2, q_pos = terms
    p = tl.exp2(score * scale_log2 - m[:, None])  # [64, BLOCK_N]
    l += gl.convert_layout(partial_row_sums(p), l.type.layout, assert_trivial=True)
    if OVERLAPPED:
        l = in_order(l, 4)
    return l, p


@gluon.jit
def attend_first(
    at, m, grows, l, q_tile, k_start, buffers, terms, STAGES: tl.constexpr, D: tl.constexpr,
    BLOCK_N: tl.constexpr, SCORES: tl.constexpr, OUT: tl.constexpr
):  # fmt: skip
    """Weights of the first tile of keys, which is mixed or may as well be taken for such."""
    k_buffer, k_ready, k_free, v_buffer, v_ready, v_free, turns = buffers
    stage = at % STAGES
    mbarrier.wait(k_ready.index(stage), at // STAGES & 1)
    below = gl.full([64, BLOCK_N], 0.0, gl.float32, SCORES)
    scoring = score_product(q_tile, matrix(k_buffer, stage), below, D, ADDS=False)
    score = warpgroup_mma_wait(0, [scoring])
    mbarrier.arrive(k_free.index(stage), count=1)
    m, l, p, shrink = weigh(m, grows, l, score, k_start, terms, BLOCK_N, OVERLAPPED=False, mixed=True)
    return gl.convert_layout(shrink, gl.SliceLayout(1, OUT)), m, l, pack(p, v_buffer.dtype)


@gluon.jit
def attend(
    at, visits, acc, packed, m, grows, l, q_tile, k_start, buffers, terms, STAGES: tl.constexpr, D: tl.constexpr,
    BLOCK_N: tl.constexpr, SCORES: tl.constexpr, OUT: tl.constexpr, WEIGHTS: tl.constexpr, WORKERS: tl.constexpr,
    WORKER: tl.constexpr, mixed
):  # fmt: skip
    """Update (acc, m, l) with the scores of one tile of keys, and acc with the weighted values of the tile before.

    Three workers issue their products in turns: what one then does to its scores, another one's products overlap.
    """
    k_buffer, k_ready, k_free, v_buffer, v_ready, v_free, turns = buffers
    stage, before = at % STAGES, (at - 1) % STAGES
    weights = unpack(packed, v_buffer.dtype, WEIGHTS)
    mbarrier.wait(k_ready.index(stage), at // STAGES & 1)
    if WORKERS == 3:
        mbarrier.wait(turns.index(WORKER), at - visits + (WORKER == 0) & 1)
    below = gl.full([64, BLOCK_N], 0.0, gl.float32, SCORES)
    scoring = score_product(q_tile, matrix(k_buffer, stage), below, D, ADDS=False)
    mbarrier.wait(v_ready.index(before), (at - 1) // STAGES & 1)
    adding = warpgroup_mma(weights, matrix(v_buffer, before), acc, is_async=True)
    if WORKERS == 3:
        mbarrier.arrive(turns.index((WORKER + 1) % WORKERS), count=1)
    score = warpgroup_mma_wait(1, [scoring])
    mbarrier.arrive(k_free.index(stage), count=1)
    # the product of the values runs on while scores are weighed, where that is faster
    OVERLAPPED: gl.constexpr = acc.shape[1] >= 256
    STEADY: gl.constexpr = not mixed and v_buffer.dtype == gl.bfloat16
    if STEADY:
        l, p = weigh_on(m, l, score, terms, OVERLAPPED=acc.shape[1] >= 128)
    else:
        m, l, p, shrink = weigh(m, grows, l, score, k_start, terms, BLOCK_N, OVERLAPPED, mixed=mixed)
    acc = warpgroup_mma_wait(0, [adding])
    # the product read the registers of the weights before until here
    packed = pack(p, v_buffer.dtype)
    mbarrier.arrive(v_free.index(before), count=1)
    if not STEADY:
        shrink = gl.convert_layout(shrink, gl.SliceLayout(1, OUT))
        if OVERLAPPED:
            acc = shrunk(acc, shrink)
        else:
            acc = acc * shrink[:, None]
    return acc, m, l, packed


@gluon.jit
def add_last(at, acc, packed, buffers, STAGES: gl.constexpr, WEIGHTS: gl.constexpr):
    """Update acc with the weighted values of the last tile."""
    k_buffer, k_ready, k_free, v_buffer, v_ready, v_free, turns = buffers
    before = (at - 1) % STAGES
    mbarrier.wait(v_ready.index(before), (at - 1) // STAGES & 1)
    adding = warpgroup_mma(unpack(packed, v_buffer.dtype, WEIGHTS), matrix(v_buffer, before), acc, is_async=True)
    acc = warpgroup_mma_wait(0, [adding])
    mbarrier.arrive(v_free.index(before), count=1)
    return acc


@gluon.jit
def pass_by(at, count, buffers, STAGES: gl.constexpr):
    """Give back so many tiles, of which the rows of this worker see nothing."""
    k_buffer, k_ready, k_free, v_buffer, v_ready, v_free, turns = buffers
    for _ in tl.range(0, count):
        stage, phase = at % STAGES, at // STAGES & 1
        mbarrier.wait(k_ready.index(stage), phase)
        mbarrier.arrive(k_free.index(stage), count=1)
        mbarrier.wait(v_ready.index(stage), phase)
        mbarrier.arrive(v_free.index(stage), count=1)
        at += 1
    return at


@gluon.jit
def work(
    arguments, queries, buffers, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    Q_STAGES: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr, WORKERS: tl.constexpr,
    WORKER: tl.constexpr
):  # fmt: skip
    """Store out and the LSE of 64 queries of each tile of this program."""
    (
        out_ptr, lse_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, q_total, max_seqlen_q, k_total, max_seqlen_k,
        Hq, scale, sequences, q_rows
    ) = arguments  # fmt: skip
    q_buffer, q_ready, q_free, places, verdicts = queries
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_DV, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    SUMS: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [8, 0]], [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 8]
    )
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BLOCK_DV, BLOCK_DV // 8], [4, 1], [1, 0])
    at = 0  # tiles of keys so far
    visits = 0  # ranges of such tiles so far
    begun = 0  # tiles of queries so far
    number, b, h = next_place(begun, q_ready, places, Q_STAGES)
    while number >= 0:
        stage = begun % Q_STAGES
        tile, again = number // 2, number % 2
        q_start = tile * BLOCK_M
        q_offset, q_end = find_rows(cu_seqlens_q_ptr, b, q_total)
        q_len = tl.minimum(q_end - q_offset, max_seqlen_q)
        q_aligned = (q_offset // 4 + b) * 4
        k_offset, k_end = find_rows(cu_seqlens_k_ptr, b, k_total)
        k_len = tl.minimum(k_end - k_offset, max_seqlen_k)
        room = q_end // BLOCK_M - q_offset // BLOCK_M + 1  # so many tiles share the rows that no sequence has
        clear_rows(
            out_ptr + tl.cast(h, tl.int64) * DV, Hq * DV, b, sequences, q_offset, q_len, q_end, q_total,
            tile * WORKERS + WORKER, room * WORKERS, WIDE, BLOCK_DV, DV
        )  # fmt: skip
        if q_start < q_len:
            q_begin = k_len - q_len
            q_first = q_start + q_begin
            q_last = tl.minimum(q_first + BLOCK_M, q_len + q_begin) - 1
            # [64]
            row = q_start + WORKER * 64 + gl.arange(0, 64, gl.SliceLayout(1, SCORES))
            q_pos = row + q_begin
            scale_log2 = scale * LOG2E
            grows = row == row if q_buffer.dtype == gl.float16 else row != row
            if again > 0:
                first_lse = tl.load(
                    lse_ptr + tl.cast(h, tl.int64) * q_rows + q_aligned + row, mask=row < q_len, other=0.0
                )
                grows = first_lse != first_lse
            # [64, BLOCK_DV]
            acc = gl.full([64, BLOCK_DV], 0.0, gl.float32, OUT)
            # [64]
            m = gl.full([64], float("-inf"), tl.float32, gl.SliceLayout(1, SCORES))
            # [64, 8]
            l = gl.full([64, 8], 0.0, tl.float32, SUMS)
            q_tile = matrix(q_buffer, stage * WORKERS + WORKER)
            terms = (scale_log2, q_pos)
            if BLOCK_N == 64 and WORKERS == 2:
                # tiles are as long as the rows of a worker, who has a range of its own
                first, _, _, last = key_tiles(q_first, q_last, k_len, BLOCK_N)
                low, high = first, last  # those of all workers
                q_first = tl.minimum(q_first + WORKER * 64, q_last)
                q_last = tl.minimum(q_first + 63, q_last)
            first, full_first, full_last, last = key_tiles(q_first, q_last, k_len, BLOCK_N)
            if BLOCK_N == 64 and WORKERS == 2:
                last = tl.minimum(tl.maximum(last, low), high)
                first = tl.minimum(tl.maximum(first, low), last)
                at = pass_by(at, high - last, buffers, STAGES)
            if last > first:
                k_start = (last - 1) * BLOCK_N
                shrink, m, l, packed = attend_first(
                    at, m, grows, l, q_tile, k_start, buffers, terms, STAGES, D, BLOCK_N, SCORES, OUT
                )  # fmt: skip
                at += 1
                visits += 1
                # the first query's own key is in none of them
                full_last = tl.minimum(full_last, tl.maximum(q_first, 0) // BLOCK_N)
                full_last = tl.where(again > 0, first, full_last)
                rest = last - 1  # tiles before it are still to come
                for j in tl.range(full_last, rest):
                    k_start = (full_last + rest - 1 - j) * BLOCK_N
                    acc, m, l, packed = attend(
                        at, visits, acc, packed, m, grows, l, q_tile, k_start, buffers, terms, STAGES, D, BLOCK_N, SCORES, OUT,
                        WEIGHTS, WORKERS, WORKER, mixed=True
                    )  # fmt: skip
                    at += 1
                rest = tl.minimum(full_last, rest)
                for j in tl.range(full_first, rest):
                    k_start = (full_first + rest - 1 - j) * BLOCK_N
                    acc, m, l, packed = attend(
                        at, visits, acc, packed, m, grows, l, q_tile, k_start, buffers, terms, STAGES, D, BLOCK_N, SCORES, OUT,
                        WEIGHTS, WORKERS, WORKER, mixed=False
                    )  # fmt: skip
                    at += 1
                acc = add_last(at, acc, packed, buffers, STAGES, WEIGHTS)
            if BLOCK_N == 64 and WORKERS == 2:
                at = pass_by(at, first - low, buffers, STAGES)

            l = gl.convert_layout(tl.sum(l, 1), m.type.layout)  # [64]
            # rows without keys: 0, and an LSE that makes every weight 0
            share = tl.where(l == 0, 0.0, 1 / l)
            out = acc * gl.convert_layout(share, gl.SliceLayout(1, OUT))[:, None]
            out = as_stored(out.to(q_buffer.dtype), q_tile, WIDE, Q_STAGES)
            first_row = q_offset.to(tl.int64) * Hq + h
            store_rows(out_ptr + first_row * DV, Hq * DV, out, q_start + WORKER * 64, q_len, DV)
            fence_async_shared()
            # [64]
            lse = tl.where(l == 0, float("inf"), tl.where(grows, m + tl.log2(l), m - 63.0 + tl.log2(l * 2.0**63)))
            # NaN, too, is not known to be small; 1 of it may be a sink's
            outgrown = (row < q_len) & ~grows & ~(l <= 2.0)
            lse = tl.where(outgrown, float("nan"), lse)
            verdicts.index(stage * WORKERS + WORKER).store(outgrown.to(gl.int32))
            tl.store(lse_ptr + tl.cast(h, tl.int64) * q_rows + q_aligned + row, lse, mask=row < q_len)
        mbarrier.arrive(q_free.index(stage), count=1)
        begun += 1
        number, b, h = next_place(begun, q_ready, places, Q_STAGES)


@gluon.jit
def load_keys(
    at, k_start, k_offset, kv_h, k_len, ends, v_come, k_desc, v_desc, buffers, STAGES: tl.constexpr,
    BLOCK_N: tl.constexpr
):  # fmt: skip
    """Copy one tile of keys and of values, and hand on what workers read of each key besides."""
    k_buffer, k_ready, k_free, v_buffer, v_ready, v_free, turns = buffers
    stage, phase = at % STAGES, at // STAGES & 1
    mbarrier.wait(k_free.index(stage), phase ^ 1)
    mbarrier.expect(k_ready.index(stage), k_desc.block_type.nbytes)
    rows = [kv_h, k_offset + k_start, 0]
    copy_tile(k_desc, rows, k_ready.index(stage), k_buffer.index(stage))
    mbarrier.wait(v_free.index(stage), phase ^ 1)
    if k_start + BLOCK_N > k_len:
        # the next sequence's values: 0 times a NaN would be NaN
        mbarrier.expect(v_come, v_desc.block_type.nbytes)
        copy_tile(v_desc, rows, v_come, v_buffer.index(stage))
        mbarrier.wait(v_come, ends & 1)
        clear_behind(matrix(v_buffer, stage), k_len - k_start, BLOCK_N)
        mbarrier.arrive(v_ready.index(stage), count=1)
        ends += 1
    else:
        mbarrier.expect(v_ready.index(stage), v_desc.block_type.nbytes)
        copy_tile(v_desc, rows, v_ready.index(stage), v_buffer.index(stage))
    return ends


@gluon.jit
def load_tiles(
    lengths, queries, buffers, q_desc, k_desc, v_desc, v_come, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr, Q_STAGES: tl.constexpr, GROUP: tl.constexpr, WORKERS: tl.constexpr
):  # fmt: skip
    """Copy the tiles of queries, keys and values that the workers need, in their order."""
    (
        lse_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, q_total, max_seqlen_q, k_total, max_seqlen_k,
        sequences, q_rows, items, slots, group
    ) = lengths  # fmt: skip
    q_buffer, q_ready, q_free, places, verdicts = queries
    at = 0  # tiles of keys so far
    begun = 0  # tiles of queries so far
    ends = 0  # ends of sequences so far
    item, again, stage = tl.program_id(0), 0, 0
    # rounds without a tile: after as many as there are stages, none comes back
    idle = tl.where(item < items, 0, Q_STAGES)
    while idle < Q_STAGES:
        coming = item
        if (again == 0) & (item < items):
            coming = take_next(lse_ptr, q_rows, items)
        slot = slots - 1 - item // group % slots
        b, tile = find_tile(cu_seqlens_q_ptr, slot, sequences, BLOCK_M)
        h = item // (group * slots) * group + item % group
        tile = tl.where(again > 0, handed_on(places.index(stage * 3)) // 2, tile)
        b = tl.where(again > 0, handed_on(places.index(stage * 3 + 1)), b)
        h = tl.where(again > 0, handed_on(places.index(stage * 3 + 2)), h)
        tile = tl.where((again > 0) | (item < items), tile, NO_TILE)
        kv_h = h // GROUP
        q_start = tile * BLOCK_M
        q_offset, q_end = find_rows(cu_seqlens_q_ptr, b, q_total)
        q_len = tl.minimum(q_end - q_offset, max_seqlen_q)
        k_offset, k_end = find_rows(cu_seqlens_k_ptr, b, k_total)
        k_len = tl.minimum(k_end - k_offset, max_seqlen_k)
        hand_on(places, stage, tile * 2 + again, b, h)
        mbarrier.arrive(q_ready.index(stage), count=1)
        if q_start < q_len:
            q_begin = k_len - q_len
            q_first = q_start + q_begin
            q_last = tl.minimum(q_first + BLOCK_M, q_len + q_begin) - 1
            mbarrier.expect(q_ready.index(stage), WORKERS * q_desc.block_type.nbytes)
            for worker in gl.static_range(WORKERS):
                rows = [h, q_offset + q_start + worker * 64, 0]
                copy_tile(q_desc, rows, q_ready.index(stage), q_buffer.index(stage * WORKERS + worker))
            first, _, _, last = key_tiles(q_first, q_last, k_len, BLOCK_N)
            for j in tl.range(first, last):
                k_start = (first + last - 1 - j) * BLOCK_N
                ends = load_keys(
                    at, k_start, k_offset, kv_h, k_len, ends, v_come, k_desc, v_desc, buffers, STAGES, BLOCK_N
                )  # fmt: skip
                at += 1
        else:
            mbarrier.arrive(q_ready.index(stage), count=1)
        begun += 1
        item = coming
        stage = begun % Q_STAGES
        mbarrier.wait(q_free.index(stage), begun // Q_STAGES & 1 ^ 1)
        again = outgrew(verdicts, stage, WORKERS)
        idle = tl.where((again > 0) | (item < items), 0, idle + 1)
    hand_on(places, stage, -1, 0, 0)
    mbarrier.arrive(q_ready.index(stage), count=2)


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers, one for each stage of a buffer: they wait for as many ARRIVALS, and for all bytes expected."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit(
    do_not_specialize=[
        "q_total",
        "max_seqlen_q",
        "k_total",
        "max_seqlen_k",
        "Hq",
        "sequences",
        "q_rows",
        "items",
        "slots",
        "group",
    ]
)
def forward(
    q_desc, k_desc, v_desc, out_ptr, lse_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, scale, q_total, max_seqlen_q,
    k_total, max_seqlen_k, Hq, sequences, q_rows, items, slots, group, D: tl.constexpr, GROUP: tl.constexpr,
    DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    STAGES: tl.constexpr, Q_STAGES: tl.constexpr
):  # fmt: skip
    """Store out and the LSE of all tiles of queries."""
    WORKERS: gl.constexpr = BLOCK_M // 64
    q_buffer = gl.allocate_shared_memory(q_desc.dtype, [Q_STAGES * WORKERS, 1, 64, BLOCK_D], q_desc.layout)
    k_buffer = gl.allocate_shared_memory(k_desc.dtype, [STAGES, 1, BLOCK_N, BLOCK_D], k_desc.layout)
    v_buffer = gl.allocate_shared_memory(v_desc.dtype, [STAGES, 1, BLOCK_N, BLOCK_DV], v_desc.layout)
    v_come = barriers(1, 1).index(0)
    places = gl.allocate_shared_memory(gl.int32, [Q_STAGES * 3, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    verdicts = verdict_buffer(Q_STAGES * WORKERS)
    queries = (q_buffer, barriers(Q_STAGES, 2), barriers(Q_STAGES, WORKERS), places, verdicts)
    buffers = (
        k_buffer, barriers(STAGES, 1), barriers(STAGES, WORKERS),
        v_buffer, barriers(STAGES, 1), barriers(STAGES, WORKERS), barriers(WORKERS, 1)
    )  # fmt: skip
    fence_async_shared()
    arguments = (
        out_ptr, lse_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, q_total, max_seqlen_q, k_total, max_seqlen_k,
        Hq, scale, sequences, q_rows
    )  # fmt: skip
    lengths = (
        lse_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, q_total, max_seqlen_q, k_total, max_seqlen_k,
        sequences, q_rows, items, slots, group
    )  # fmt: skip
    # a worker's threads get the registers that the loader leaves
    if WORKERS == 3:
        gl.warp_specialize(
            [
                (work, (
                    arguments, queries, buffers, BLOCK_M, BLOCK_N, STAGES, Q_STAGES, D, DV, BLOCK_DV, WORKERS, 0
                )),
                (work, (
                    arguments, queries, buffers, BLOCK_M, BLOCK_N, STAGES, Q_STAGES, D, DV, BLOCK_DV, WORKERS, 1
                )),
                (work, (
                    arguments, queries, buffers, BLOCK_M, BLOCK_N, STAGES, Q_STAGES, D, DV, BLOCK_DV, WORKERS, 2
                )),
                (load_tiles, (
                    lengths, queries, buffers, q_desc, k_desc, v_desc, v_come, BLOCK_M, BLOCK_N, STAGES, Q_STAGES,
                    GROUP, WORKERS
                )),
            ],
            [4, 4, 1], [160, 160, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (work, (
                    arguments, queries, buffers, BLOCK_M, BLOCK_N, STAGES, Q_STAGES, D, DV, BLOCK_DV, WORKERS, 0
                )),
                (work, (
                    arguments, queries, buffers, BLOCK_M, BLOCK_N, STAGES, Q_STAGES, D, DV, BLOCK_DV, WORKERS, 1
                )),
                (load_tiles, (
                    lengths, queries, buffers, q_desc, k_desc, v_desc, v_come, BLOCK_M, BLOCK_N, STAGES, Q_STAGES,
                    GROUP, WORKERS
                )),
            ],
            [4, 1], [240, 24],
        )  # fmt: skip
