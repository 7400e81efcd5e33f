# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/bigbird.yaml
#   content hash  9259dc949df00933
#   text hash     5441b1fc4ea8d2aa
#   render with   attnforge render specs/bigbird.yaml
"""The kernels: A window of three blocks, two global blocks, and random blocks that a mask gives.

Symbols
    B, b            batch entries, and one of them
    Hq, h           query heads, and one of them
    q_len, k_len    queries and keys of a sequence
    D, DV           head sizes of q·k and of v
    q_pos, k_pos    positions; queries are counted so that the last one lines up with the last key
    TILES           the axis of the grid that holds the tiles which programs own
    m, l, acc       running maximum, denominator and numerator of the softmax, the maximum in log2 units
    p, dp, ds       weights, their gradient, the gradient of the score
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def floor_div(x, y):
    """x // y rounded down, as in Python: the kernel language's own rounds towards zero."""
    quotient = x // y
    rest = x - quotient * y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)


@triton.jit
def whole_tiles(lo, hi, full_lo, full_hi, BLOCK: tl.constexpr):
    """Tiles that meet [lo, hi), and those of them that lie inside [full_lo, full_hi)."""
    first = lo // BLOCK
    last = tl.maximum(tl.cdiv(hi, BLOCK), first)
    full_first = tl.minimum(tl.maximum(tl.cdiv(full_lo, BLOCK), first), last)
    full_last = tl.minimum(tl.maximum(full_hi // BLOCK, full_first), last)
    return first, full_first, full_last, last


@triton.jit
def key_tiles(q_first, q_last, k_len, BLOCK_N: tl.constexpr):
    """Key tiles of a query tile: of [first, last), those in [full_first, full_last) need no mask."""
    return whole_tiles(
        0,
        k_len,
        tl.maximum(tl.where(q_last < 128, 0, 64 * floor_div(q_last, 64) - 64), 0),
        tl.minimum(tl.where(q_last < 128, k_len, 64 * floor_div(q_first, 64) + 128), k_len),
        BLOCK_N,
    )


@triton.jit
def query_tiles(k_first, k_last, q_len, k_len, BLOCK_M: tl.constexpr):
    """Query tiles of a key tile: of [first, last), those in [full_first, full_last) need no mask."""
    shift = k_len - q_len
    return whole_tiles(
        0,
        q_len,
        tl.maximum(tl.where(k_last < 128, k_len - q_len, 64 * floor_div(k_last, 64) - 64) - shift, 0),
        tl.minimum(tl.where(k_last < 128, k_len, 64 * floor_div(k_first, 64) + 128) - shift, q_len),
        BLOCK_M,
    )


@triton.jit
def in_32_bits(x):
    """Floats as float32, whole numbers as int32."""
    return x.to(tl.float32 if x.dtype.is_floating() else tl.int32)


@triton.jit
def load_vector(ptr, first, stride, count, BLOCK: tl.constexpr):
    """Elements from `first` on, 0 where that is before the first or past the last."""
    row = first + tl.arange(0, BLOCK)
    return in_32_bits(tl.load(ptr + row.to(tl.int64) * stride, mask=(row >= 0) & (row < count), other=0))


@triton.jit
def load_pairs(ptr, down, down_stride, down_count, across, across_stride, across_count):
    """Elements at all pairs of two vectors of places, 0 where one of the two is past the last."""
    places = down.to(tl.int64)[:, None] * down_stride + across.to(tl.int64)[None, :] * across_stride
    return tl.load(ptr + places, mask=(down < down_count)[:, None] & (across < across_count)[None, :], other=0)


@triton.jit
def find_head(heads, TILES: tl.constexpr):
    """The batch entry and the head of a program: heads come in groups, one group after the other."""
    place = tl.program_id(2) * tl.num_programs(1 - TILES) + tl.program_id(1 - TILES)
    return place // heads, place % heads


@triton.jit
def load_tile(desc, b, h, first, count, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of a head: by a descriptor where the GPU copies tiles by itself, else by pointers, 0 from row `count` on."""
    if isinstance(desc, tl.core.tensor_descriptor_base):
        tile = desc.load([b, h, first, 0]).reshape([ROWS, COLUMNS])
    else:
        # strides count 16 bytes: so the compiler sees that it may load as many at once
        ptr, WIDTH, stride_batch, stride_head, stride_row = desc
        STEP: tl.constexpr = 128 // ptr.dtype.element_ty.primitive_bitwidth
        row = first + tl.arange(0, ROWS)
        column = tl.arange(0, COLUMNS)
        ptr += (tl.cast(b, tl.int64) * stride_batch + tl.cast(h, tl.int64) * stride_head) * STEP
        inside = (row < count)[:, None] & (column < WIDTH)[None, :]
        tile = tl.load(ptr + row.to(tl.int64)[:, None] * (stride_row * STEP) + column[None, :], mask=inside, other=0.0)
    return tile


@triton.jit
def load_rows(desc, base, start, stride, count, BLOCK: tl.constexpr):
    """A value of each row of a head; before the first and past the last 0, or what stands there."""
    if isinstance(desc, tl.core.tensor_descriptor_base):
        x = in_32_bits(desc.load([tl.cast(base + start, tl.int32)]))
    else:
        x = load_vector(desc + base, start, stride, count, BLOCK)
    return x


@triton.jit
def add_product(total, a, b, PRECISION: tl.constexpr):
    """total + a @ b; in float32 a tile's product is summed up first, or the roundings of long sums would pile up."""
    if a.dtype == tl.float32:
        # fma keeps the compiler from summing right into the total
        return tl.fma(total, 1.0, tl.dot(a, b, input_precision=PRECISION))
    return tl.dot(a, b, total)


@triton.jit
def sums_by_thread(p):
    """Sums of every eighth column: of those that a thread holds, so that threads need not talk at each step."""
    return tl.sum(p.reshape([p.shape[0], p.shape[1] // 8, 8]), 1)


@triton.jit
def store_rows(ptr, stride, x, first, count, WIDTH: tl.constexpr):
    """Writes the rows of a tile that are below `count`, and their first WIDTH columns."""
    row = first + tl.arange(0, x.shape[0])
    column = tl.arange(0, x.shape[1])
    inside = (row < count)[:, None] & (column < WIDTH)[None, :]
    tl.store(ptr + row.to(tl.int64)[:, None] * stride + column[None, :], x.to(ptr.dtype.element_ty), mask=inside)


@triton.jit
def key_states(
    tile,
    q_first,
    q_last,
    q_len,
    k_len,
    block_mask_base,
    block_mask_stride_query,
    block_mask_stride_key,
    BLOCK_N: tl.constexpr,
):
    """Which of some tiles of keys show anything to a tile of queries, and which show all."""
    k_first = tile * BLOCK_N
    k_last = tl.minimum(k_first + BLOCK_N, k_len) - 1
    block_mask_qk_least, block_mask_qk_most = block_extremes(
        block_mask_base,
        q_first - (k_len - q_len),
        q_last - (k_len - q_len),
        64,
        block_mask_stride_query,
        k_first,
        k_last,
        64,
        block_mask_stride_key,
        BLOCK_N,
    )
    some = k_first <= k_last
    every = k_first + BLOCK_N <= k_len
    state0_0 = floor_div(q_first, 64) - floor_div(k_last, 64)
    state0_1 = floor_div(q_last, 64) - floor_div(k_first, 64)
    some &= (
        (tl.maximum(state0_0, 0) - tl.minimum(state0_1, 0) <= 1)
        | (q_first < 128)
        | (k_first < 128)
        | (block_mask_qk_most != 0)
    )  # any(abs(q // 64 - k // 64) <= 1, global_tokens, block_spa...
    every &= (
        (tl.maximum(tl.abs(state0_0), tl.abs(state0_1)) <= 1)
        | (q_last < 128)
        | (k_last < 128)
        | (block_mask_qk_least != 0)
    )  # any(abs(q // 64 - k // 64) <= 1, global_tokens, block_spa...
    return some, some & every


@triton.jit
def query_states(
    tile,
    k_first,
    k_last,
    q_len,
    k_len,
    block_mask_base,
    block_mask_stride_query,
    block_mask_stride_key,
    BLOCK_M: tl.constexpr,
):
    """Which of some tiles of queries show anything to a tile of keys, and which show all."""
    q_first = tile * BLOCK_M + (k_len - q_len)
    q_last = tl.minimum(q_first + BLOCK_M, k_len) - 1
    block_mask_qk_least, block_mask_qk_most = block_extremes(
        block_mask_base,
        k_first,
        k_last,
        64,
        block_mask_stride_key,
        q_first - (k_len - q_len),
        q_last - (k_len - q_len),
        64,
        block_mask_stride_query,
        BLOCK_M,
    )
    some = q_first <= q_last
    every = q_first + BLOCK_M <= k_len
    state0_0 = floor_div(q_first, 64) - floor_div(k_last, 64)
    state0_1 = floor_div(q_last, 64) - floor_div(k_first, 64)
    some &= (
        (tl.maximum(state0_0, 0) - tl.minimum(state0_1, 0) <= 1)
        | (q_first < 128)
        | (k_first < 128)
        | (block_mask_qk_most != 0)
    )  # any(abs(q // 64 - k // 64) <= 1, global_tokens, block_spa...
    every &= (
        (tl.maximum(tl.abs(state0_0), tl.abs(state0_1)) <= 1)
        | (q_last < 128)
        | (k_last < 128)
        | (block_mask_qk_least != 0)
    )  # any(abs(q // 64 - k // 64) <= 1, global_tokens, block_spa...
    return some, some & every


@triton.jit
def block_extremes(
    base, first, last, PER: tl.constexpr, stride, other_first, other_last, OTHER_PER: tl.constexpr, other_stride,
    BLOCK: tl.constexpr
):  # fmt: skip
    """The least and the greatest entry of the blocks that a tile of one side and some tiles of the other side meet in."""
    there = other_first <= other_last
    least, most = tl.where(there, 2**31 - 1, 0), tl.where(there, -(2**31), 0)
    for i in tl.range(first // PER, last // PER + 1):
        for j in tl.static_range(1 if OTHER_PER % BLOCK == 0 else (BLOCK - 1) // OTHER_PER + 2):
            place = tl.minimum(other_first // OTHER_PER + j, other_last // OTHER_PER)
            entry = tl.load(
                base + tl.cast(i, tl.int64) * stride + place.to(tl.int64) * other_stride, mask=there, other=0
            )
            least, most = tl.minimum(least, entry.to(tl.int32)), tl.maximum(most, entry.to(tl.int32))
    return least, most


@triton.jit
def lowest(word):
    """The place of the lowest bit that is set: the exponent of that bit as a float."""
    return ((word & -word).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def bits(flags, axis: tl.constexpr):
    """Truth values as the bits of numbers."""
    place = tl.arange(0, 32).to(tl.int64)
    return tl.sum(flags.to(tl.int64) << (place[None, :] if axis == 1 else place), axis)


@triton.jit
def gather(flags):
    """The start of a walk over what is true among 32 x 32: its words, and which of them are not empty."""
    words = bits(flags, 1)
    return words, bits(words != 0, 0), 0, tl.full([], 0, tl.int64)


@triton.jit
def following(words, waiting, word, left):
    """The next step of that walk: the lowest bit of `left` is the next place in its word."""
    left &= left - 1
    used_up = left == 0
    word = tl.where(used_up, lowest(waiting), word)
    left = tl.where(used_up, tl.sum(tl.where(tl.arange(0, 32) == word, words, 0)), left)
    return word, left, tl.where(used_up, waiting & (waiting - 1), waiting)


@triton.jit
def attend(
    acc, m, l, q_tile, k_desc, v_desc, b, h, k_start, k_len, units, row, q_pos, q_len, block_mask_base,
    block_mask_stride_query, block_mask_stride_key, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, mixed
):  # fmt: skip
    """Adds one tile of keys to the running softmax."""
    k_pos = k_start + tl.arange(0, BLOCK_N)
    k_tile = load_tile(k_desc, b, h, k_start, k_len, BLOCK_N, BLOCK_D)
    score = tl.dot(q_tile, k_tile.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    v_tile = load_tile(v_desc, b, h, k_start, k_len, BLOCK_N, BLOCK_DV)
    if mixed:
        keep = (k_pos < k_len)[None, :]
        block_mask_qk = load_pairs(
            block_mask_base,
            row // 64,
            block_mask_stride_query,
            tl.cdiv(q_len, 64),
            k_pos // 64,
            block_mask_stride_key,
            tl.cdiv(k_len, 64),
        ).to(tl.int1)
        keep &= (
            (tl.abs(floor_div(q_pos[:, None], 64) - k_pos[None, :] // 64) <= 1)
            | (q_pos[:, None] < 128)
            | (k_pos[None, :] < 128)
            | block_mask_qk
        )  # any(abs(q // 64 - k // 64) <= 1, global_tokens, block_spa...
        score = tl.where(keep, score, float("-inf"))
    m_new = tl.maximum(m, tl.max(score, 1) * units)
    # a row that has seen no key yet keeps m = -inf: measure it from 0, or -inf - -inf is NaN
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(score * units - pivot[:, None])
    shrink = tl.exp2(m - pivot)
    acc, l, m = acc * shrink[:, None], l * shrink[:, None], m_new
    acc = add_product(acc, p.to(v_tile.dtype), v_tile, PRECISION)  # [BLOCK_M, BLOCK_DV]
    return acc, m, l + sums_by_thread(p)


@triton.jit(do_not_specialize=["q_len", "k_len", "Hq"])
def forward(
    q_desc, k_desc, v_desc, out_ptr, lse_ptr, scale, block_mask_ptr, q_len, k_len, Hq, block_mask_stride_batch,
    block_mask_stride_head, block_mask_stride_query, block_mask_stride_key, DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """Attends from one tile of queries of one head."""
    # late rows tend to see more keys: they start first
    tile = tl.num_programs(TILES) - 1 - tl.program_id(TILES)
    b, h = find_head(Hq, TILES)
    q_start = tile * BLOCK_M
    q_first = q_start + (k_len - q_len)
    q_last = tl.minimum(q_first + BLOCK_M, k_len) - 1
    row = q_start + tl.arange(0, BLOCK_M)
    q_pos = row + (k_len - q_len)
    units = scale * LOG2E
    block_mask_base = (
        block_mask_ptr + tl.cast(b, tl.int64) * block_mask_stride_batch + tl.cast(h, tl.int64) * block_mask_stride_head
    )

    q_tile = load_tile(q_desc, b, h, q_start, q_len, BLOCK_M, BLOCK_D)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M, 8], tl.float32)
    first, _, _, last = key_tiles(q_first, q_last, k_len, BLOCK_N)
    for page in tl.range(first // 1024, tl.cdiv(last, 1024)):
        others = page * 1024 + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
        some, every = key_states(
            others,
            q_first,
            q_last,
            q_len,
            k_len,
            block_mask_base,
            block_mask_stride_query,
            block_mask_stride_key,
            BLOCK_N,
        )
        some &= (others >= first) & (others < last)
        words, waiting, word, left = gather(some & ~every)
        for _ in tl.range(0, tl.sum((some & ~every).to(tl.int32))):
            word, left, waiting = following(words, waiting, word, left)
            k_start = (page * 1024 + word * 32 + lowest(left)) * BLOCK_N
            acc, m, l = attend(
                acc, m, l, q_tile, k_desc, v_desc, b, h, k_start, k_len, units, row, q_pos, q_len, block_mask_base,
                block_mask_stride_query, block_mask_stride_key, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION, mixed=True
            )  # fmt: skip
        words, waiting, word, left = gather(some & every)
        for _ in tl.range(0, tl.sum((some & every).to(tl.int32))):
            word, left, waiting = following(words, waiting, word, left)
            k_start = (page * 1024 + word * 32 + lowest(left)) * BLOCK_N
            acc, m, l = attend(
                acc, m, l, q_tile, k_desc, v_desc, b, h, k_start, k_len, units, row, q_pos, q_len, block_mask_base,
                block_mask_stride_query, block_mask_stride_key, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION, mixed=False
            )  # fmt: skip

    l = tl.sum(l, 1)
    # rows without keys: 0, and an LSE that makes every weight 0
    out = acc / tl.where(l == 0, 1.0, l)[:, None]
    store_rows(out_ptr + (b.to(tl.int64) * q_len * Hq + h) * DV, Hq * DV, out, q_start, q_len, DV)
    lse = tl.where(l == 0, float("inf"), m + tl.log2(l))
    tl.store(lse_ptr + (b.to(tl.int64) * Hq + h) * q_len + row, lse, mask=row < q_len)


@triton.jit
def learn_from_queries(
    dk, dv, k_tile, v_tile, q_desc, dout_desc, lse_desc, delta_desc, row_base, b, h, q_start, q_len, k_len, units,
    k_pos, block_mask_base, block_mask_stride_query, block_mask_stride_key, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, mixed
):  # fmt: skip
    """Adds what one tile of queries teaches a tile of keys."""
    row = q_start + tl.arange(0, BLOCK_M)
    q_pos = row + (k_len - q_len)
    q_tile = load_tile(q_desc, b, h, q_start, q_len, BLOCK_M, BLOCK_D)
    dout_tile = load_tile(dout_desc, b, h, q_start, q_len, BLOCK_M, BLOCK_DV)
    score = tl.dot(k_tile, q_tile.T, input_precision=PRECISION)  # [BLOCK_N, BLOCK_M]
    lse = load_rows(lse_desc, row_base, q_start, 1, q_len, BLOCK_M)
    delta = load_rows(delta_desc, row_base, q_start, 1, q_len, BLOCK_M)
    dp = tl.dot(v_tile, dout_tile.T, input_precision=PRECISION)
    p = tl.exp2(score * units - lse[None, :])
    if mixed:
        delta = tl.where(row < q_len, delta, 0.0)
        keep = (row < q_len)[None, :]
        block_mask_qk = load_pairs(
            block_mask_base,
            k_pos // 64,
            block_mask_stride_key,
            tl.cdiv(k_len, 64),
            row // 64,
            block_mask_stride_query,
            tl.cdiv(q_len, 64),
        ).to(tl.int1)
        keep &= (
            (tl.abs(floor_div(q_pos[None, :], 64) - k_pos[:, None] // 64) <= 1)
            | (q_pos[None, :] < 128)
            | (k_pos[:, None] < 128)
            | block_mask_qk
        )  # any(abs(q // 64 - k // 64) <= 1, global_tokens, block_spa...
        p = tl.where(keep, p, 0.0)
    dv = add_product(dv, p.to(dout_tile.dtype), dout_tile, PRECISION)  # [BLOCK_N, BLOCK_DV]
    ds = p * (dp - delta[None, :])
    dk = add_product(dk, ds.to(q_tile.dtype), q_tile, PRECISION)  # [BLOCK_N, BLOCK_D]
    return dk, dv


@triton.jit(do_not_specialize=["q_len", "k_len", "Hq"])
def backward_dkv(
    q_desc, k_desc, v_desc, dout_desc, lse_desc, delta_desc, dk_ptr, dv_ptr, scale, block_mask_ptr, q_len, k_len,
    Hq, block_mask_stride_batch, block_mask_stride_head, block_mask_stride_query, block_mask_stride_key,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """The gradients of one tile of keys and values of one head."""
    tile = tl.program_id(TILES)
    b, h = find_head(Hq, TILES)
    k_start = tile * BLOCK_N
    k_first = k_start
    k_last = tl.minimum(k_start + BLOCK_N, k_len) - 1
    k_pos = k_start + tl.arange(0, BLOCK_N)
    units = scale * LOG2E

    k_tile = load_tile(k_desc, b, h, k_start, k_len, BLOCK_N, BLOCK_D)
    v_tile = load_tile(v_desc, b, h, k_start, k_len, BLOCK_N, BLOCK_DV)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    # one head: without a loop around it the compiler makes slower code of 256 columns
    for _ in tl.range(h, h + 1):
        row_base = (b.to(tl.int64) * Hq + h) * q_len
        block_mask_base = (
            block_mask_ptr
            + tl.cast(b, tl.int64) * block_mask_stride_batch
            + tl.cast(h, tl.int64) * block_mask_stride_head
        )
        first, _, _, last = query_tiles(k_first, k_last, q_len, k_len, BLOCK_M)
        for page in tl.range(first // 1024, tl.cdiv(last, 1024)):
            others = page * 1024 + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
            some, every = query_states(
                others,
                k_first,
                k_last,
                q_len,
                k_len,
                block_mask_base,
                block_mask_stride_query,
                block_mask_stride_key,
                BLOCK_M,
            )
            some &= (others >= first) & (others < last)
            words, waiting, word, left = gather(some & ~every)
            for _ in tl.range(0, tl.sum((some & ~every).to(tl.int32))):
                word, left, waiting = following(words, waiting, word, left)
                q_start = (page * 1024 + word * 32 + lowest(left)) * BLOCK_M
                dk, dv = learn_from_queries(
                    dk, dv, k_tile, v_tile, q_desc, dout_desc, lse_desc, delta_desc, row_base, b, h, q_start, q_len,
                    k_len, units, k_pos, block_mask_base, block_mask_stride_query, block_mask_stride_key, BLOCK_M,
                    BLOCK_D, BLOCK_DV, PRECISION, mixed=True
                )  # fmt: skip
            words, waiting, word, left = gather(some & every)
            for _ in tl.range(0, tl.sum((some & every).to(tl.int32))):
                word, left, waiting = following(words, waiting, word, left)
                q_start = (page * 1024 + word * 32 + lowest(left)) * BLOCK_M
                dk, dv = learn_from_queries(
                    dk, dv, k_tile, v_tile, q_desc, dout_desc, lse_desc, delta_desc, row_base, b, h, q_start, q_len,
                    k_len, units, k_pos, block_mask_base, block_mask_stride_query, block_mask_stride_key, BLOCK_M,
                    BLOCK_D, BLOCK_DV, PRECISION, mixed=False
                )  # fmt: skip

    first_row = b.to(tl.int64) * k_len * Hq + h
    store_rows(dk_ptr + first_row * D, Hq * D, dk * scale, k_start, k_len, D)
    store_rows(dv_ptr + first_row * DV, Hq * DV, dv, k_start, k_len, DV)


@triton.jit
def learn_from_keys(
    dq, q_tile, dout_tile, lse, delta, k_desc, v_desc, b, h, k_start, k_len, units, row, q_pos, q_len,
    block_mask_base, block_mask_stride_query, block_mask_stride_key, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, mixed
):  # fmt: skip
    """Adds what one tile of keys teaches a tile of queries."""
    k_pos = k_start + tl.arange(0, BLOCK_N)
    k_tile = load_tile(k_desc, b, h, k_start, k_len, BLOCK_N, BLOCK_D)
    v_tile = load_tile(v_desc, b, h, k_start, k_len, BLOCK_N, BLOCK_DV)
    score = tl.dot(q_tile, k_tile.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    dp = tl.dot(dout_tile, v_tile.T, input_precision=PRECISION)
    p = tl.exp2(score * units - lse[:, None])
    if mixed:
        keep = (k_pos < k_len)[None, :]
        block_mask_qk = load_pairs(
            block_mask_base,
            row // 64,
            block_mask_stride_query,
            tl.cdiv(q_len, 64),
            k_pos // 64,
            block_mask_stride_key,
            tl.cdiv(k_len, 64),
        ).to(tl.int1)
        keep &= (
            (tl.abs(floor_div(q_pos[:, None], 64) - k_pos[None, :] // 64) <= 1)
            | (q_pos[:, None] < 128)
            | (k_pos[None, :] < 128)
            | block_mask_qk
        )  # any(abs(q // 64 - k // 64) <= 1, global_tokens, block_spa...
        p = tl.where(keep, p, 0.0)
    ds = p * (dp - delta[:, None])
    dq = add_product(dq, ds.to(k_tile.dtype), k_tile, PRECISION)  # [BLOCK_M, BLOCK_D]
    return dq


@triton.jit(do_not_specialize=["q_len", "k_len", "Hq"])
def backward_dq(
    q_desc, k_desc, v_desc, out_desc, dout_desc, dq_ptr, lse_ptr, dlse_ptr, delta_ptr, scale, block_mask_ptr,
    q_len, k_len, Hq, block_mask_stride_batch, block_mask_stride_head, block_mask_stride_query,
    block_mask_stride_key, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """The gradient of one tile of queries of one head, and delta, what the softmax takes off every score's gradient."""
    # late rows tend to see more keys: they start first
    tile = tl.num_programs(TILES) - 1 - tl.program_id(TILES)
    b, h = find_head(Hq, TILES)
    q_start = tile * BLOCK_M
    q_first = q_start + (k_len - q_len)
    q_last = tl.minimum(q_first + BLOCK_M, k_len) - 1
    row = q_start + tl.arange(0, BLOCK_M)
    q_pos = row + (k_len - q_len)
    units = scale * LOG2E
    block_mask_base = (
        block_mask_ptr + tl.cast(b, tl.int64) * block_mask_stride_batch + tl.cast(h, tl.int64) * block_mask_stride_head
    )

    q_tile = load_tile(q_desc, b, h, q_start, q_len, BLOCK_M, BLOCK_D)
    dout_tile = load_tile(dout_desc, b, h, q_start, q_len, BLOCK_M, BLOCK_DV)
    out_tile = load_tile(out_desc, b, h, q_start, q_len, BLOCK_M, BLOCK_DV)
    delta = tl.sum(out_tile.to(tl.float32) * dout_tile.to(tl.float32), 1)
    row_base = (b.to(tl.int64) * Hq + h) * q_len
    if dlse_ptr is not None:
        # as if every score were taken once more: its weight is the derivative of the LSE
        delta -= tl.load(dlse_ptr + row_base + row, mask=row < q_len, other=0.0) * LOG2E
    lse = tl.load(lse_ptr + row_base + row, mask=row < q_len, other=0.0)
    tl.store(delta_ptr + row_base + row, delta, mask=row < q_len)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    first, _, _, last = key_tiles(q_first, q_last, k_len, BLOCK_N)
    for page in tl.range(first // 1024, tl.cdiv(last, 1024)):
        others = page * 1024 + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
        some, every = key_states(
            others,
            q_first,
            q_last,
            q_len,
            k_len,
            block_mask_base,
            block_mask_stride_query,
            block_mask_stride_key,
            BLOCK_N,
        )
        some &= (others >= first) & (others < last)
        words, waiting, word, left = gather(some & ~every)
        for _ in tl.range(0, tl.sum((some & ~every).to(tl.int32))):
            word, left, waiting = following(words, waiting, word, left)
            k_start = (page * 1024 + word * 32 + lowest(left)) * BLOCK_N
            dq = learn_from_keys(
                dq, q_tile, dout_tile, lse, delta, k_desc, v_desc, b, h, k_start, k_len, units, row, q_pos, q_len,
                block_mask_base, block_mask_stride_query, block_mask_stride_key, BLOCK_N, BLOCK_D, BLOCK_DV,
                PRECISION, mixed=True
            )  # fmt: skip
        words, waiting, word, left = gather(some & every)
        for _ in tl.range(0, tl.sum((some & every).to(tl.int32))):
            word, left, waiting = following(words, waiting, word, left)
            k_start = (page * 1024 + word * 32 + lowest(left)) * BLOCK_N
            dq = learn_from_keys(
                dq, q_tile, dout_tile, lse, delta, k_desc, v_desc, b, h, k_start, k_len, units, row, q_pos, q_len,
                block_mask_base, block_mask_stride_query, block_mask_stride_key, BLOCK_N, BLOCK_D, BLOCK_DV,
                PRECISION, mixed=False
            )  # fmt: skip

    first_row = b.to(tl.int64) * q_len * Hq + h
    store_rows(dq_ptr + first_row * D, Hq * D, dq * scale, q_start, q_len, D)
