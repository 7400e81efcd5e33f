# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_encoder.yaml
#   content hash  0c4c8e7be22227ad
#   text hash     2ac588dfa4a6372c
#   render with   attnforge render specs/t5_encoder.yaml
"""The forward pass of kernels.py for Hopper GPUs, in Gluon; the header of that file has the formulas and names.

Programs take items in turn. An item is a tile of BLOCK_M queries, or a pair of a late and an early tile. Late tiles of
a group of heads come first; if all tiles have the same amount of work, one head follows the other. In a call that
leaves rows out, tiles are ranked by their work. In each program one warp loads, and each worker, a group of four warps,
computes 64 of the queries:

    load_tiles   waits until a buffer stage is free, then has the next tile of keys or values copied into it
    work         for each tile of keys: issues the product for its scores and, without waiting, the product that adds
                 the weighted values of the previous tile; then computes the weights of the current tile

A stage is ready when all its bytes have arrived, and free when every worker is done with it; each has a barrier.
Tiles of keys are visited from the last to the first: mixed tiles, then full ones.
With bfloat16 a row's weights are relative to 2**63 times the largest weight of the first tile that shows it a key, so
full tiles need no search for a larger one. If the weights of a row then add up to more than 2, its LSE becomes NaN, and
its tile is computed once more; in this second pass such rows track their largest score.

Layouts
    SCORES     [64, BLOCK_N] in registers, the result layout of a product; a quad of threads holds a row
    OUT        [64, BLOCK_DV], likewise
    WEIGHTS    [64, BLOCK_N] as the left operand of the product that computes OUT
    SUMS       [64, 8]: each thread adds up its own columns of SCORES
    WIDE       [64, BLOCK_DV], 16 bytes of a row in each thread, for stores to memory

Symbols
    by_distance, by_distance_ptr
                        part of the scores by the distance from key to query: a row for each head; distance 0 is at the
                        pointer
    by_distance_place   index of a distance there: from position 0 of the other side to the first own row
    items, per_item     number of items that programs take in turn, and of tiles of queries in each: 1, or 2 for pairs
    tiles, group        number of tiles of queries of a head, and of heads in a group
    order               these four, by which `digits` splits numbers
    place, step         a program's item and the step to its next one, as (group, tile or pair, head within the group)
    early, half         index of the early tile of an item; which tile of the item is current: 0 for the late one
    ranked_ptr          number of tiles of queries with rows that count, then entry and tile of each; None if no row is
                        left out, or for a single batch entry
    STAGES, Q_STAGES    number of stages of the buffers of keys and of values, and of the buffer of queries
    queries, buffers    the buffer of queries, and the buffers of keys and of values, with their barriers
    WORKERS             number of workers in a program
    WORKER              index of this worker
    arguments           the kernel parameters that workers need
    lengths             the kernel parameters that the loader needs
    terms               a tuple that a worker or the loader builds for its steps: values that no step changes
    x_buffer            tiles of x in shared memory, one per stage
    x_ready             for each of its stages, the barrier for the tile's arrival
    x_free              for each of its stages, the barrier at which all workers report that they are done with the tile
    at                  number of tiles so far: the current one has stage at % STAGES, in round at // STAGES
    phase               phase bit: the lowest bit of the round, by which a wait tells it from the previous one
    ends                number of tiles so far that reach behind their sequence
    v_come              the barrier for the arrival of such a tile, in which the loader clears rows before workers see
                        it; () if there is no such tile
    visits              number of ranges of tiles of keys so far that were not empty
    begun               number of tiles of queries so far: the current one has stage begun % Q_STAGES
    ahead               tiles of keys before this index are copied ahead of the queries
    others              the second operand of the product for scores: a tile of keys, or of queries
    before              the stage of the previous tile
    turns               for each of three workers, the barrier at which it waits for its turn to issue products
    packed              the weights of the previous tile, two in each int32
    OVERLAPPED          whether the product with the previous values keeps running while weights are computed
    rest                tiles of keys before this index remain
    grows               whether m tracks a row's largest score: always with float16, otherwise if it has outgrown its
                        first keys
    STEADY              whether m stays unchanged for all rows of a tile
    outgrown            whether the sum of a row's weights, which are relative to its first keys, is too large
    nth                 index of a tile among those of its program, modulo 32: its bit in wanted and asks
    wanted              bit mask of the tiles that a pass visits
    asks, asked         bit mask of the tiles for which a row asks for a second pass; the masks of all workers' rows
    asked_ready         the barrier at which all workers report that they have asked
    AGAIN               whether this is the second pass through the program's tiles, which visits few of them
    counts              numbers of tiles so far, before or after a pass
    first_lse           the LSE that the first pass stored
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait
)  # fmt: skip

from . import padding, runtime
from .by_distance import make_by_distance
from .kernels import LOG2E, find_entry, key_tiles, partial_row_sums

copy_tile = runtime.gluon_copy_of_tiles()


@gluon.jit
def digits(n, order):
    """Split n into (group of heads, tile, head within the group); the head varies fastest, then the tile."""
    items, tiles, group, per_item = order
    of_group = tl.cdiv(tiles, per_item)
    return n // (of_group * group), n // group % of_group, n % group


@gluon.jit
def add_digits(place, step, order):
    """Add two such numbers, place and step, without a division."""
    items, tiles, group, per_item = order
    of_group = tl.cdiv(tiles, per_item)
    head = place[2] + step[2]
    carry = (head >= group).to(tl.int32)
    early = place[1] + step[1] + carry
    further = (early >= of_group).to(tl.int32)
    return place[0] + step[0] + further, early - further * of_group, head - carry * group


@gluon.jit
def find_item(head, tile, i, ranked_ptr, Hq):
    """Batch entry, tile and head of a program's i-th item: the given ones, counted across entries, or the ranked ones.

    Items are ranked by their work: in turns, programs take them in order in even rounds, and in reverse in odd ones.
    """
    b, h = head // Hq, head % Hq
    if ranked_ptr is not None:
        programs, ahead = tl.num_programs(0), tl.program_id(0)
        place = i * programs + tl.where(i % 2 == 0, ahead, programs - 1 - ahead)
        ranked_ptr += 1 + place // Hq * 2
        b, tile, h = tl.load(ranked_ptr), tl.load(ranked_ptr + 1), place % Hq
    return b, tile, h


@gluon.jit
def any_row(bits, first, WORKERS: gl.constexpr):
    """The bits that the rows of all workers have stored from an index of a buffer on, combined."""
    found = 0
    for worker in gl.static_range(WORKERS):
        told = bits.index(first + worker).load(gl.BlockedLayout([2], [32], [gl.num_warps()], [0]))
        found |= tl.reduce_or(told, 0)
    return found


@gluon.jit
def heard(asked, asked_ready, WORKERS: gl.constexpr):
    """Wait until all workers have asked; return a bit mask of the tiles of which any row asks for a second pass."""
    mbarrier.wait(asked_ready, 0)
    return any_row(asked, 0, WORKERS)


@gluon.jit
def ask(asked, asked_ready, asks, WORKERS: gl.constexpr, WORKER: gl.constexpr):
    """Publish which tiles the rows of this worker ask for, and return what all workers ask for."""
    asked.index(WORKER).store(asks)
    mbarrier.arrive(asked_ready, count=1)
    return heard(asked, asked_ready, WORKERS)


@gluon.jit
def matrix(buffer, i):
    """Tile i of a buffer, by rows and columns."""
    tile = buffer.index(i)
    return tile.reshape([tile.shape[2], tile.shape[3]])


@gluon.jit
def score_product(rows, others, below, D: gl.constexpr, ADDS: gl.constexpr):
    """Issue, without waiting, the product of the rows of two tiles, added to `below` if ADDS is true.

    If the last 64 of 256 columns are empty, they are left out.
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
    """Pack weights as `dtype`, two in each int32: as 16-bit values they would be unpacked and repacked at each step."""
    even, odd = gl.split(p.reshape([p.shape[0], p.shape[1] // 2, 2]))
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [even, odd], gl.int32, True, 1)
    else:
        return gl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [even, odd], gl.int32, True, 1)


@gluon.jit
def unpack(packed, dtype: gl.constexpr, WEIGHTS: gl.constexpr):
    """Unpack the weights, of type `dtype`, as the left operand of a product."""
    even = packed.to(gl.uint16).to(dtype, bitcast=True)
    odd = (packed >> 16).to(gl.uint16).to(dtype, bitcast=True)
    return gl.convert_layout(gl.join(even, odd).reshape([packed.shape[0], packed.shape[1] * 2]), WEIGHTS)


@gluon.jit
def of_registers(COLUMNS: gl.constexpr, SCORES: gl.constexpr):
    """[64, COLUMNS], column - row without what a thread's registers have in common: a known constant per register."""
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, SCORES)) & ~6
    return column[None, :] - (gl.arange(0, 64, gl.SliceLayout(1, SCORES)) & 8)[:, None]


@gluon.jit
def apart(x):
    """Integers made opaque to the compiler, which would pack comparisons of distances into the bits of a word."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], gl.int32, True, 1)


@gluon.jit
def of_threads(COLUMNS: gl.constexpr, SCORES: gl.constexpr):
    """[64, COLUMNS], the rest of column - row: one number for all registers of a thread."""
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, SCORES)) & 6
    return apart(column[None, :] - (gl.arange(0, 64, gl.SliceLayout(1, SCORES)) & ~8)[:, None])


@gluon.jit
def at_distances(first_ptr, score, KEYS_DOWN: gl.constexpr):
    """For each score, the value of its distance; the pointer is that of the distance in the first row and column.

    Tiles are keys by queries if KEYS_DOWN, else queries by keys. Addresses of a thread's registers differ by constants.
    """
    SCORES: gl.constexpr = score.type.layout
    if KEYS_DOWN:
        return tl.load(first_ptr + of_threads(score.shape[1], SCORES) + of_registers(score.shape[1], SCORES))
    else:
        return tl.load(first_ptr - of_threads(score.shape[1], SCORES) - of_registers(score.shape[1], SCORES))


@triton.constexpr_function
def operands(result, results, inputs, given="f"):
    """Constraints of inline PTX with so many results and inputs, floats or words; `=&` marks results written early."""
    return ",".join([result] * results + [given] * inputs)


@triton.constexpr_function
def watching(count):
    """PTX that goes on once `count` values of a thread are known; it never loops: no arithmetic gives that NaN."""
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
    """Values x, COUNT per thread, known before what follows begins: only branches stop the assembler hoisting waits."""
    constraints: gl.constexpr = operands("=&r", COUNT, COUNT, "r")
    return gl.inline_asm_elementwise(watching(COUNT), constraints, [x], gl.float32, False, COUNT)


@triton.constexpr_function
def shrinking(count):
    """PTX that multiplies `count` values of a thread by their rows' factors; warps with factors of 1 alone skip it.

    In the result of a product, a thread's values are in two rows: two of the first, two of the second, and so on.
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
    """The rows of acc, each times its factor; warps in which no row's largest score has grown skip the products."""
    COUNT: gl.constexpr = acc.shape[1] // 2  # of each of 128 threads
    return gl.inline_asm_elementwise(
        shrinking(COUNT), operands("=f", COUNT, 2 * COUNT), [acc, shrink[:, None]], gl.float32, False, COUNT
    )


@gluon.jit
def as_stored(out, q_tile, WIDE: gl.constexpr, Q_STAGES: gl.constexpr):
    """A tile of out with 16 bytes of a row in each thread, rearranged in the shared memory of the queries.

    With a single stage the next queries already arrive there: then each warp rearranges its own rows by itself.
    """
    if Q_STAGES == 1:
        return gl.convert_layout(out, gl.BlockedLayout([2, 8], [8, 4], [4, 1], [1, 0]))
    else:
        tile = q_tile.slice(0, out.shape[1], 1)
        tile.store(out)
        return tile.load(WIDE)


@gluon.jit
def store_rows(ptr, stride, x, first, count, WIDTH: gl.constexpr):
    """Store the first WIDTH columns of the rows of a tile, as far as they lie before row `count`."""
    row = first + gl.arange(0, x.shape[0], gl.SliceLayout(1, x.type.layout))
    column = gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
    inside = (row < count)[:, None] & (column < WIDTH)[None, :]
    tl.store(ptr + row.to(tl.int64)[:, None] * stride + column[None, :], x.to(ptr.dtype.element_ty), mask=inside)


@gluon.jit
def clear_behind(tile, count, ROWS: gl.constexpr):
    """Clear the rows of a tile of ROWS rows in shared memory from row `count` on, eight at a time."""
    # the loading warp has few registers
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
    """Compute the weights of one tile of keys, and update `m` and the partial row sums with them."""
    k_len, scale, by_distance_ptr, by_distance_place = terms
    # [BLOCK_N]
    k_pos = k_start + gl.arange(0, BLOCK_N, gl.SliceLayout(0, score.type.layout))
    score = score * scale
    # [64, BLOCK_N]
    by_distance = at_distances(by_distance_ptr + by_distance_place - k_start, score, KEYS_DOWN=False)
    score = score + by_distance  # relative_bias
    if mixed:
        keep = (k_pos < k_len)[None, :]
        score = tl.where(keep, score, float("-inf"))
    # [64]
    top = tl.max(score, 1) * LOG2E
    # a row keeps the maximum of its first keys, with room for larger scores, unless it has outgrown that
    top = tl.where(grows, top, top + 63.0)
    m_new = tl.where(grows | (k_start + BLOCK_N >= k_len), tl.maximum(m, top), m)
    if OVERLAPPED:
        m_new = in_order(m_new, 2)
    # a row that has seen no key yet has m = -inf: subtract the lowest number instead, as -inf - -inf is NaN
    pivot = tl.maximum(m_new, -3.4028234e38)
    p = tl.exp2(score * LOG2E - pivot[:, None])  # [64, BLOCK_N]
    shrink = tl.exp2(m - pivot)  # [64]
    l *= gl.convert_layout(shrink, gl.SliceLayout(1, l.type.layout))[:, None]
    l += gl.convert_layout(partial_row_sums(p), l.type.layout, assert_trivial=True)
    return m_new, l, p, shrink


@gluon.jit
def weigh_on(
    m, l, score, k_start, terms, OVERLAPPED: tl.constexpr
):  # fmt: skip
    """Compute the weights of a tile of keys that all rows see, with `m` unchanged, and update the partial row sums."""
    k_len, scale, by_distance_ptr, by_distance_place = terms
    score = score * scale
    # [64, BLOCK_N]
    by_distance = at_distances(by_distance_ptr + by_distance_place - k_start, score, KEYS_DOWN=False)
    score = score + by_distance  # relative_bias
    p = tl.exp2(score * LOG2E - m[:, None])  # [64, BLOCK_N]
    l += gl.convert_layout(partial_row_sums(p), l.type.layout, assert_trivial=True)
    if OVERLAPPED:
        l = in_order(l, 4)
    return l, p


@gluon.jit
def attend_first(
    at, m, grows, l, q_tile, k_start, buffers, terms, STAGES: tl.constexpr, D: tl.constexpr,
    BLOCK_N: tl.constexpr, SCORES: tl.constexpr, OUT: tl.constexpr
):  # fmt: skip
    """Compute the weights of the first tile of keys, which is mixed or may be treated as mixed."""
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
    """Update (acc, m, l) with the scores of one tile of keys, and acc with the weighted values of the previous tile.

    Three workers issue their products in turn, so that one worker's softmax overlaps with the products of another.
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
    # where that is faster, the product with the values keeps running while weights are computed
    OVERLAPPED: gl.constexpr = acc.shape[1] >= 256
    STEADY: gl.constexpr = not mixed and v_buffer.dtype == gl.bfloat16
    if STEADY:
        l, p = weigh_on(m, l, score, k_start, terms, OVERLAPPED=acc.shape[1] >= 128)
    else:
        m, l, p, shrink = weigh(m, grows, l, score, k_start, terms, BLOCK_N, OVERLAPPED, mixed=mixed)
    acc = warpgroup_mma_wait(0, [adding])
    # until here the product was reading the registers of the previous weights
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
def work_through(
    wanted, counts, arguments, order, queries, buffers, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr, Q_STAGES: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr,
    WORKERS: tl.constexpr, WORKER: tl.constexpr, AGAIN: tl.constexpr
):  # fmt: skip
    """Store out and the LSE of 64 queries of each wanted tile; rows that outgrow their first keys ask for a repeat."""
    (
        out_ptr, lse_ptr, entries_ptr, q_total, k_total, Hq, scale, by_distance_ptr,
        by_distance_stride_head, ranked_ptr
    ) = arguments  # fmt: skip
    items, tiles, group, per_item = order
    if ranked_ptr is not None:
        items = tl.cdiv(tl.load(ranked_ptr) * Hq, tl.num_programs(0)) * tl.num_programs(0)
    q_buffer, q_ready, q_free, asked, asked_ready = queries
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_DV, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    SUMS: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [8, 0]], [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 8]
    )
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BLOCK_DV, BLOCK_DV // 8], [4, 1], [1, 0])
    at, visits, begun = counts  # so far: tiles of keys, ranges of such tiles, and tiles of queries
    asks = gl.full([64], 0, gl.int32, gl.SliceLayout(1, SCORES))  # for each row
    place, step = digits(tl.program_id(0), order), digits(tl.num_programs(0), order)
    for i in tl.range(0, tl.cdiv(items - tl.program_id(0), tl.num_programs(0))):
        for half in tl.range(0, per_item):
            early = place[1]
            tile = tl.where(half == 0, tiles - 1 - early, early)
            head = place[0] * group + place[2]
            b, tile, h = find_item(head, tile, i, ranked_ptr, Hq)
            nth = (i * per_item + half) % 32
            q_start = tile * BLOCK_M
            q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
            if ((half == 0) | (early < tiles - 1 - early)) & (q_start < q_len) & (wanted >> nth & 1 > 0):
                q_begin = k_len - q_len if entries_ptr is None else tl.load(entries_ptr + 5 * b + 4)
                q_first = q_start + q_begin
                # [64]
                row = q_start + WORKER * 64 + gl.arange(0, 64, gl.SliceLayout(1, SCORES))
                by_distance_place = tl.cast(h, tl.int64) * by_distance_stride_head + q_first + WORKER * 64
                if AGAIN:
                    first_lse = tl.load(
                        lse_ptr + (b.to(tl.int64) * Hq + h) * q_total + q_offset + row, mask=row < q_len, other=0.0
                    )
                    grows = first_lse != first_lse
                else:
                    grows = row == row if q_buffer.dtype == gl.float16 else row != row
                # [64, BLOCK_DV]
                acc = gl.full([64, BLOCK_DV], 0.0, gl.float32, OUT)
                # [64]
                m = gl.full([64], float("-inf"), tl.float32, gl.SliceLayout(1, SCORES))
                # [64, 8]
                l = gl.full([64, 8], 0.0, tl.float32, SUMS)
                # if the first keys have scores of -inf, any later score is too large at once, whichever tile it is in
                m = tl.where(~grows & (m == float("-inf")), -3.4028234e38, m)
                stage = begun % Q_STAGES
                mbarrier.wait(q_ready.index(stage), begun // Q_STAGES & 1)
                q_tile = matrix(q_buffer, stage * WORKERS + WORKER)
                terms = (k_len, scale, by_distance_ptr, by_distance_place)
                first, full_first, full_last, last = key_tiles(k_len, BLOCK_N)
                if last > first:
                    k_start = (last - 1) * BLOCK_N
                    shrink, m, l, packed = attend_first(
                        at, m, grows, l, q_tile, k_start, buffers, terms, STAGES, D, BLOCK_N, SCORES, OUT
                    )  # fmt: skip
                    at += 1
                    visits += 1
                    if AGAIN:
                        full_last = first
                    rest = last - 1  # tiles before this one remain
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
                if Q_STAGES == 1:
                    mbarrier.arrive(q_free.index(stage), count=1)

                l = gl.convert_layout(tl.sum(l, 1), m.type.layout)  # [64]
                # rows without keys: out is 0, the LSE makes every weight 0
                share = tl.where(l == 0, 0.0, 1 / l)
                out = acc * gl.convert_layout(share, gl.SliceLayout(1, OUT))[:, None]
                out = as_stored(out.to(q_buffer.dtype), q_tile, WIDE, Q_STAGES)
                first_row = (b.to(tl.int64) * q_total + q_offset) * Hq + h
                store_rows(out_ptr + first_row * DV, Hq * DV, out, q_start + WORKER * 64, q_len, DV)
                if Q_STAGES > 1:
                    fence_async_shared()
                    mbarrier.arrive(q_free.index(stage), count=1)
                begun += 1
                # [64]
                lse = tl.where(l == 0, float("inf"), tl.where(grows, m + tl.log2(l), m - 63.0 + tl.log2(l * 2.0**63)))
                # a NaN counts as outgrown, too
                outgrown = (row < q_len) & ~grows & ~(l <= 2.0)
                lse = tl.where(outgrown, float("nan"), lse)
                asks = asks | tl.where(outgrown, 1 << nth, 0)
                tl.store(lse_ptr + (b.to(tl.int64) * Hq + h) * q_total + q_offset + row, lse, mask=row < q_len)
        place = add_digits(place, step, order)
    return (at, visits, begun), asks


@gluon.jit
def work(
    arguments, order, queries, buffers, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    Q_STAGES: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr, WORKERS: tl.constexpr,
    WORKER: tl.constexpr
):  # fmt: skip
    """Store out and the LSE of 64 queries of each tile of this program."""
    q_buffer, q_ready, q_free, asked, asked_ready = queries
    counts, asks = work_through(
        -1, (0, 0, 0), arguments, order, queries, buffers, BLOCK_M, BLOCK_N, STAGES, Q_STAGES, D, DV, BLOCK_DV, WORKERS,
        WORKER, AGAIN=False
    )  # fmt: skip
    if q_buffer.dtype == gl.bfloat16:
        wanted = ask(asked, asked_ready, asks, WORKERS, WORKER)
        if wanted != 0:
            work_through(
                wanted, counts, arguments, order, queries, buffers, BLOCK_M, BLOCK_N, STAGES, Q_STAGES, D, DV, BLOCK_DV,
                WORKERS, WORKER, AGAIN=True
            )  # fmt: skip


@gluon.jit
def load_keys(
    at, k_start, b, h, k_offset, entries_ptr, k_len, ends, v_come, k_desc, v_desc, buffers, STAGES: tl.constexpr,
    BLOCK_N: tl.constexpr
):  # fmt: skip
    """Copy one tile of keys and one of values."""
    k_buffer, k_ready, k_free, v_buffer, v_ready, v_free, turns = buffers
    stage, phase = at % STAGES, at // STAGES & 1
    mbarrier.wait(k_free.index(stage), phase ^ 1)
    mbarrier.expect(k_ready.index(stage), k_desc.block_type.nbytes)
    rows = [b, h, k_offset + k_start, 0]
    copy_tile(k_desc, rows, k_ready.index(stage), k_buffer.index(stage))
    mbarrier.wait(v_free.index(stage), phase ^ 1)
    if entries_ptr is not None and k_start + BLOCK_N > k_len:
        # clear what lies behind the sequence: 0 times a NaN would be NaN
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
def load_through(
    wanted, counts, lengths, order, queries, buffers, q_desc, k_desc, v_desc, v_come, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, Q_STAGES: tl.constexpr, WORKERS: tl.constexpr
):  # fmt: skip
    """Copy the tiles of queries, keys and values that the workers need, in their order."""
    entries_ptr, q_total, k_total, Hq, ranked_ptr = lengths
    items, tiles, group, per_item = order
    if ranked_ptr is not None:
        items = tl.cdiv(tl.load(ranked_ptr) * Hq, tl.num_programs(0)) * tl.num_programs(0)
    q_buffer, q_ready, q_free, asked, asked_ready = queries
    at, begun, ends = counts  # so far: tiles of keys, tiles of queries, and ends of sequences
    place, step = digits(tl.program_id(0), order), digits(tl.num_programs(0), order)
    for i in tl.range(0, tl.cdiv(items - tl.program_id(0), tl.num_programs(0))):
        for half in tl.range(0, per_item):
            early = place[1]
            tile = tl.where(half == 0, tiles - 1 - early, early)
            head = place[0] * group + place[2]
            b, tile, h = find_item(head, tile, i, ranked_ptr, Hq)
            nth = (i * per_item + half) % 32
            q_start = tile * BLOCK_M
            q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
            if ((half == 0) | (early < tiles - 1 - early)) & (q_start < q_len) & (wanted >> nth & 1 > 0):
                first, _, _, last = key_tiles(k_len, BLOCK_N)
                ahead = first
                if Q_STAGES == 1:
                    ahead = tl.minimum(first + 1, last)
                    for j in tl.range(first, ahead):
                        k_start = (first + last - 1 - j) * BLOCK_N
                        ends = load_keys(
                            at, k_start, b, h, k_offset, entries_ptr, k_len, ends, v_come, k_desc, v_desc, buffers, STAGES, BLOCK_N
                        )  # fmt: skip
                        at += 1
                stage = begun % Q_STAGES
                mbarrier.wait(q_free.index(stage), begun // Q_STAGES & 1 ^ 1)
                mbarrier.expect(q_ready.index(stage), WORKERS * q_desc.block_type.nbytes)
                for worker in gl.static_range(WORKERS):
                    rows = [b, h, q_offset + q_start + worker * 64, 0]
                    copy_tile(q_desc, rows, q_ready.index(stage), q_buffer.index(stage * WORKERS + worker))
                begun += 1
                for j in tl.range(ahead, last):
                    k_start = (first + last - 1 - j) * BLOCK_N
                    ends = load_keys(
                        at, k_start, b, h, k_offset, entries_ptr, k_len, ends, v_come, k_desc, v_desc, buffers, STAGES, BLOCK_N
                    )  # fmt: skip
                    at += 1
        place = add_digits(place, step, order)
    return at, begun, ends


@gluon.jit
def load_tiles(
    lengths, order, queries, buffers, q_desc, k_desc, v_desc, v_come, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, Q_STAGES: tl.constexpr, WORKERS: tl.constexpr
):  # fmt: skip
    """Copy all tiles, then once more those that a worker asks for."""
    q_buffer, q_ready, q_free, asked, asked_ready = queries
    counts = load_through(
        -1, (0, 0, 0), lengths, order, queries, buffers, q_desc, k_desc, v_desc, v_come, BLOCK_M, BLOCK_N, STAGES,
        Q_STAGES, WORKERS
    )  # fmt: skip
    if q_buffer.dtype == gl.bfloat16:
        wanted = heard(asked, asked_ready, WORKERS)
        if wanted != 0:
            load_through(
                wanted, counts, lengths, order, queries, buffers, q_desc, k_desc, v_desc, v_come, BLOCK_M, BLOCK_N,
                STAGES, Q_STAGES, WORKERS
            )  # fmt: skip


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers, one for each stage of a buffer; each waits for ARRIVALS arrivals and all expected bytes."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit(do_not_specialize=["q_total", "k_total", "Hq", "items", "tiles", "group", "per_item"])
def forward(
    q_desc, k_desc, v_desc, out_ptr, lse_ptr, entries_ptr, scale, by_distance_ptr, ranked_ptr, q_total, k_total,
    Hq, by_distance_stride_head, items, tiles, group, per_item, D: tl.constexpr, DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    STAGES: tl.constexpr, Q_STAGES: tl.constexpr
):  # fmt: skip
    """Store out and the LSE of all tiles of queries."""
    WORKERS: gl.constexpr = BLOCK_M // 64
    q_buffer = gl.allocate_shared_memory(q_desc.dtype, [Q_STAGES * WORKERS, 1, 1, 64, BLOCK_D], q_desc.layout)
    k_buffer = gl.allocate_shared_memory(k_desc.dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_D], k_desc.layout)
    v_buffer = gl.allocate_shared_memory(v_desc.dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_DV], v_desc.layout)
    v_come = () if entries_ptr is None else barriers(1, 1).index(0)
    asked = gl.allocate_shared_memory(gl.int32, [WORKERS, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    asked_ready = barriers(1, WORKERS).index(0)
    queries = (q_buffer, barriers(Q_STAGES, 1), barriers(Q_STAGES, WORKERS), asked, asked_ready)
    buffers = (
        k_buffer, barriers(STAGES, 1), barriers(STAGES, WORKERS),
        v_buffer, barriers(STAGES, 1), barriers(STAGES, WORKERS), barriers(WORKERS, 1)
    )  # fmt: skip
    fence_async_shared()
    arguments = (
        out_ptr, lse_ptr, entries_ptr, q_total, k_total, Hq, scale, by_distance_ptr,
        by_distance_stride_head, ranked_ptr
    )  # fmt: skip
    lengths = (entries_ptr, q_total, k_total, Hq, ranked_ptr)
    order = (items, tiles, group, per_item)
    # workers get the registers that the loader does not need
    if WORKERS == 3:
        gl.warp_specialize(
            [
                (work, (
                    arguments, order, queries, buffers, BLOCK_M, BLOCK_N, STAGES, Q_STAGES, D, DV, BLOCK_DV, WORKERS, 0
                )),
                (work, (
                    arguments, order, queries, buffers, BLOCK_M, BLOCK_N, STAGES, Q_STAGES, D, DV, BLOCK_DV, WORKERS, 1
                )),
                (work, (
                    arguments, order, queries, buffers, BLOCK_M, BLOCK_N, STAGES, Q_STAGES, D, DV, BLOCK_DV, WORKERS, 2
                )),
                (load_tiles, (
                    lengths, order, queries, buffers, q_desc, k_desc, v_desc, v_come, BLOCK_M, BLOCK_N, STAGES,
                    Q_STAGES, WORKERS
                )),
            ],
            [4, 4, 1], [160, 160, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (work, (
                    arguments, order, queries, buffers, BLOCK_M, BLOCK_N, STAGES, Q_STAGES, D, DV, BLOCK_DV, WORKERS, 0
                )),
                (work, (
                    arguments, order, queries, buffers, BLOCK_M, BLOCK_N, STAGES, Q_STAGES, D, DV, BLOCK_DV, WORKERS, 1
                )),
                (load_tiles, (
                    lengths, order, queries, buffers, q_desc, k_desc, v_desc, v_come, BLOCK_M, BLOCK_N, STAGES,
                    Q_STAGES, WORKERS
                )),
            ],
            [4, 1], [240, 24],
        )  # fmt: skip


def launch_forward(
    cache, block_m, block_n, warps, stages, q, k, v, entries, in_rel_bias, scale, out, lse,
):  # fmt: skip
    """Fills in out and LSE."""
    by_distance = make_by_distance(cache, q, k, in_rel_bias)
    ranked = padding.rank(cache, entries, q, k, v, block_m, behind=False)
    runtime.launch(
        cache, forward, (block_m, block_n), (q, k, v, out, lse, entries, float(scale), by_distance, ranked),
        grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], q.shape[1], block_m, k, v),
        from_shapes=lambda: dict(
            q_desc=runtime.tile_source(q, block_m), k_desc=runtime.tile_source(k, block_n),
            v_desc=runtime.tile_source(v, block_n), q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2],
            by_distance_stride_head=runtime.stride(by_distance, 0), D=q.shape[-1], DV=v.shape[-1], BLOCK_M=block_m,
            BLOCK_N=block_n, BLOCK_D=runtime.padded_width(q), BLOCK_DV=runtime.padded_width(v),
            TILE_AXIS=runtime.tile_axis(q.shape[1], block_m), num_warps=warps, num_stages=stages, balance="tiles",
            ranked=ranked is not None,
        ),
    )  # fmt: skip
