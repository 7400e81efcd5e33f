# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/differential.yaml
#   content hash  3d615a145d22fdc0
#   text hash     eae6aa1b9ca8d351
#   render with   attnforge render specs/differential.yaml
"""The kernels: One of the two maps of differential attention, called once for each and subtracted.

Symbols
    B, b            batch entries, and one of them
    Hq, h           query heads, and one of them
    kv_h, GROUP     the key head that a query head reads, and the query heads that share it
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
        tl.minimum(q_last + 1, k_len),
        0,
        tl.minimum(q_first + 1, k_len),
        BLOCK_N,
    )


@triton.jit
def query_tiles(k_first, k_last, q_len, k_len, BLOCK_M: tl.constexpr):
    """Query tiles of a key tile: of [first, last), those in [full_first, full_last) need no mask."""
    shift = k_len - q_len
    return whole_tiles(
        tl.maximum(k_first - shift, 0),
        q_len,
        tl.maximum(k_last - shift, 0),
        q_len,
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
def angles(
    position, inside, cos_ptr, cos_stride_row, cos_stride_column, sin_ptr, sin_stride_row, sin_stride_column,
    positions_base, positions_stride_token, position_end, PAIRS: tl.constexpr, BLOCK_PAIRS: tl.constexpr
):  # fmt: skip
    """Cosines and sines of the angles at some positions."""
    if positions_base is not None:
        position = tl.load(positions_base + position.to(tl.int64) * positions_stride_token, mask=inside, other=0)
    position = tl.minimum(tl.maximum(position, 0), position_end - 1).to(tl.int64)[:, None]
    pair = tl.arange(0, BLOCK_PAIRS).to(tl.int64)[None, :]
    cos = tl.load(cos_ptr + position * cos_stride_row + pair * cos_stride_column, mask=pair < PAIRS)
    sin = tl.load(sin_ptr + position * sin_stride_row + pair * sin_stride_column, mask=pair < PAIRS)
    return cos.to(tl.float32), sin.to(tl.float32)


@triton.jit
def turn(
    x_ptr, x_stride, x_stride_column, turned_ptr, turned_stride, row, inside, cos, sin, PAIRS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr
):  # fmt: skip
    """Turns the pairs of components of some rows of one head."""
    pair = tl.arange(0, BLOCK_PAIRS).to(tl.int64)[None, :]
    first, second = pair, pair + PAIRS
    x_row, turned_row = row.to(tl.int64)[:, None] * x_stride, row.to(tl.int64)[:, None] * turned_stride
    there = inside[:, None] & (pair < PAIRS)
    a = tl.load(x_ptr + x_row + first * x_stride_column, mask=there).to(tl.float32)
    b = tl.load(x_ptr + x_row + second * x_stride_column, mask=there).to(tl.float32)
    dtype = turned_ptr.dtype.element_ty
    tl.store(turned_ptr + turned_row + first, (a * cos - b * sin).to(dtype), mask=there)
    tl.store(turned_ptr + turned_row + second, (b * cos + a * sin).to(dtype), mask=there)


@triton.jit
def turn_back(
    x_ptr, stride, start, count, shift, cos_ptr, cos_stride_row, cos_stride_column, sin_ptr, sin_stride_row,
    sin_stride_column, positions_base, positions_stride_token, position_end, PAIRS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Turns a program's own rows of a gradient back, where it has just written them."""
    tl.debug_barrier()  # other threads of the program wrote part of them
    STEP: tl.constexpr = min(ROWS, 2048 // BLOCK_PAIRS)
    end = tl.minimum(start + ROWS, count)
    for first in tl.range(start, end, STEP):
        row = first + tl.arange(0, STEP)
        inside = row < end
        cos, sin = angles(
            row + shift, inside, cos_ptr, cos_stride_row, cos_stride_column, sin_ptr, sin_stride_row,
            sin_stride_column, positions_base, positions_stride_token, position_end, PAIRS, BLOCK_PAIRS
        )  # fmt: skip
        turn(x_ptr, stride, 1, x_ptr, stride, row, inside, cos, -sin, PAIRS, BLOCK_PAIRS)


@triton.jit(do_not_specialize=["position_end", "q_len", "k_len", "Hq", "Hkv", "tiles"])
def rotate(
    q_ptr, q_turned_ptr, k_ptr, k_turned_ptr, cos_ptr, sin_ptr, positions_ptr, q_stride_batch, q_stride_token,
    q_stride_head, q_stride_column, q_turned_stride_batch, q_turned_stride_token, q_turned_stride_head,
    k_stride_batch, k_stride_token, k_stride_head, k_stride_column, k_turned_stride_batch, k_turned_stride_token,
    k_turned_stride_head, cos_stride_row, cos_stride_column, sin_stride_row, sin_stride_column,
    positions_stride_batch, positions_stride_token, position_end, q_len, k_len, Hq, Hkv, tiles,
    PAIRS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_PAIRS: tl.constexpr
):  # fmt: skip
    """Turns queries and keys by the angles of their positions."""
    tile, place = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    b, h = place // (Hq + Hkv), place % (Hq + Hkv)
    row = tile * BLOCK_T + tl.arange(0, BLOCK_T)
    position = tl.where(h < Hq, row + (k_len - q_len), row)
    inside = row < tl.where(h < Hq, q_len, k_len)
    positions_base = positions_ptr
    if positions_ptr is not None:
        positions_base += b.to(tl.int64) * positions_stride_batch
    cos, sin = angles(
        position, inside, cos_ptr, cos_stride_row, cos_stride_column, sin_ptr, sin_stride_row,
        sin_stride_column, positions_base, positions_stride_token, position_end, PAIRS, BLOCK_PAIRS
    )  # fmt: skip
    if h < Hq:
        x_ptr = q_ptr + b.to(tl.int64) * q_stride_batch + tl.cast(h, tl.int64) * q_stride_head
        turned_ptr = q_turned_ptr + b.to(tl.int64) * q_turned_stride_batch + tl.cast(h, tl.int64) * q_turned_stride_head
        turn(
            x_ptr, q_stride_token, q_stride_column, turned_ptr, q_turned_stride_token, row, inside, cos, sin, PAIRS, BLOCK_PAIRS
        )  # fmt: skip
    else:
        x_ptr = k_ptr + b.to(tl.int64) * k_stride_batch + tl.cast(h - Hq, tl.int64) * k_stride_head
        turned_ptr = (
            k_turned_ptr + b.to(tl.int64) * k_turned_stride_batch + tl.cast(h - Hq, tl.int64) * k_turned_stride_head
        )
        turn(
            x_ptr, k_stride_token, k_stride_column, turned_ptr, k_turned_stride_token, row, inside, cos, sin, PAIRS, BLOCK_PAIRS
        )  # fmt: skip


@triton.jit
def attend(
    acc, m, l, q_tile, k_desc, v_desc, b, kv_h, k_start, k_len, units, q_pos, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, mixed
):  # fmt: skip
    """Adds one tile of keys to the running softmax."""
    k_pos = k_start + tl.arange(0, BLOCK_N)
    k_tile = load_tile(k_desc, b, kv_h, k_start, k_len, BLOCK_N, BLOCK_D)
    score = tl.dot(q_tile, k_tile.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    v_tile = load_tile(v_desc, b, kv_h, k_start, k_len, BLOCK_N, BLOCK_DV)
    if mixed:
        keep = (k_pos < k_len)[None, :]
        keep &= k_pos[None, :] <= q_pos[:, None]  # causal
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
    q_desc, k_desc, v_desc, out_ptr, lse_ptr, scale, q_len, k_len, Hq, GROUP: tl.constexpr, DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """Attends from one tile of queries of one head."""
    # late rows tend to see more keys: they start first
    tile = tl.num_programs(TILES) - 1 - tl.program_id(TILES)
    b, h = find_head(Hq, TILES)
    kv_h = h // GROUP
    q_start = tile * BLOCK_M
    q_first = q_start + (k_len - q_len)
    q_last = tl.minimum(q_first + BLOCK_M, k_len) - 1
    row = q_start + tl.arange(0, BLOCK_M)
    q_pos = row + (k_len - q_len)
    units = scale * LOG2E

    q_tile = load_tile(q_desc, b, h, q_start, q_len, BLOCK_M, BLOCK_D)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M, 8], tl.float32)
    first, full_first, full_last, last = key_tiles(q_first, q_last, k_len, BLOCK_N)
    if BLOCK_DV <= 128:
        for j in tl.range(first, last):
            i = first + last - 1 - j  # from the diagonal back
            k_start = i * BLOCK_N
            mixed = i >= full_last
            acc, m, l = attend(
                acc, m, l, q_tile, k_desc, v_desc, b, kv_h, k_start, k_len, units, q_pos, BLOCK_N, BLOCK_D,
                BLOCK_DV, PRECISION, mixed=mixed
            )  # fmt: skip
    else:
        # a branch between products of this width costs more than a loop that mixed tiles have to themselves
        for i in tl.range(full_last, last):
            k_start = i * BLOCK_N
            acc, m, l = attend(
                acc, m, l, q_tile, k_desc, v_desc, b, kv_h, k_start, k_len, units, q_pos, BLOCK_N, BLOCK_D,
                BLOCK_DV, PRECISION, mixed=True
            )  # fmt: skip
        for i in tl.range(full_first, full_last):
            k_start = i * BLOCK_N
            acc, m, l = attend(
                acc, m, l, q_tile, k_desc, v_desc, b, kv_h, k_start, k_len, units, q_pos, BLOCK_N, BLOCK_D,
                BLOCK_DV, PRECISION, mixed=False
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
    k_pos, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, mixed
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
        keep &= k_pos[:, None] <= q_pos[None, :]  # causal
        p = tl.where(keep, p, 0.0)
    dv = add_product(dv, p.to(dout_tile.dtype), dout_tile, PRECISION)  # [BLOCK_N, BLOCK_DV]
    ds = p * (dp - delta[None, :])
    dk = add_product(dk, ds.to(q_tile.dtype), q_tile, PRECISION)  # [BLOCK_N, BLOCK_D]
    return dk, dv


@triton.jit(do_not_specialize=["q_len", "k_len", "Hq", "position_end"])
def backward_dkv(
    q_desc, k_desc, v_desc, dout_desc, lse_desc, delta_desc, dk_ptr, dv_ptr, scale, cos_ptr, sin_ptr,
    positions_ptr, q_len, k_len, Hq, cos_stride_row, cos_stride_column, sin_stride_row, sin_stride_column,
    positions_stride_batch, positions_stride_token, position_end, GROUP: tl.constexpr, D: tl.constexpr,
    DV: tl.constexpr, PAIRS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, BLOCK_PAIRS: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """The gradients of one tile of keys and values of one head, summed over the query heads that read it."""
    tile = tl.program_id(TILES)
    Hkv = Hq // GROUP
    b, kv_h = find_head(Hkv, TILES)
    k_start = tile * BLOCK_N
    k_first = k_start
    k_last = tl.minimum(k_start + BLOCK_N, k_len) - 1
    k_pos = k_start + tl.arange(0, BLOCK_N)
    units = scale * LOG2E

    k_tile = load_tile(k_desc, b, kv_h, k_start, k_len, BLOCK_N, BLOCK_D)
    v_tile = load_tile(v_desc, b, kv_h, k_start, k_len, BLOCK_N, BLOCK_DV)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    first, full_first, full_last, last = query_tiles(k_first, k_last, q_len, k_len, BLOCK_M)
    for h in tl.range(kv_h * GROUP, (kv_h + 1) * GROUP):
        row_base = (b.to(tl.int64) * Hq + h) * q_len
        for i in tl.range(first, last):
            q_start = i * BLOCK_M
            mixed = (i < full_first) | (i >= full_last)
            dk, dv = learn_from_queries(
                dk, dv, k_tile, v_tile, q_desc, dout_desc, lse_desc, delta_desc, row_base, b, h, q_start, q_len,
                k_len, units, k_pos, BLOCK_M, BLOCK_D, BLOCK_DV, PRECISION, mixed=mixed
            )  # fmt: skip

    first_row = b.to(tl.int64) * k_len * Hkv + kv_h
    store_rows(dk_ptr + first_row * D, Hkv * D, dk * scale, k_start, k_len, D)
    store_rows(dv_ptr + first_row * DV, Hkv * DV, dv, k_start, k_len, DV)
    positions_base = positions_ptr
    if positions_ptr is not None:
        positions_base += b.to(tl.int64) * positions_stride_batch
    turn_back(
        dk_ptr + first_row * D, Hkv * D, k_start, k_len, 0, cos_ptr, cos_stride_row, cos_stride_column,
        sin_ptr, sin_stride_row, sin_stride_column, positions_base, positions_stride_token, position_end,
        PAIRS, BLOCK_PAIRS, BLOCK_N
    )  # fmt: skip


@triton.jit
def learn_from_keys(
    dq, q_tile, dout_tile, lse, delta, k_desc, v_desc, b, kv_h, k_start, k_len, units, q_pos,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, mixed
):  # fmt: skip
    """Adds what one tile of keys teaches a tile of queries."""
    k_pos = k_start + tl.arange(0, BLOCK_N)
    k_tile = load_tile(k_desc, b, kv_h, k_start, k_len, BLOCK_N, BLOCK_D)
    v_tile = load_tile(v_desc, b, kv_h, k_start, k_len, BLOCK_N, BLOCK_DV)
    score = tl.dot(q_tile, k_tile.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    dp = tl.dot(dout_tile, v_tile.T, input_precision=PRECISION)
    p = tl.exp2(score * units - lse[:, None])
    if mixed:
        keep = (k_pos < k_len)[None, :]
        keep &= k_pos[None, :] <= q_pos[:, None]  # causal
        p = tl.where(keep, p, 0.0)
    ds = p * (dp - delta[:, None])
    dq = add_product(dq, ds.to(k_tile.dtype), k_tile, PRECISION)  # [BLOCK_M, BLOCK_D]
    return dq


@triton.jit(do_not_specialize=["q_len", "k_len", "Hq", "position_end"])
def backward_dq(
    q_desc, k_desc, v_desc, out_desc, dout_desc, dq_ptr, lse_ptr, dlse_ptr, delta_ptr, scale, cos_ptr, sin_ptr,
    positions_ptr, q_len, k_len, Hq, cos_stride_row, cos_stride_column, sin_stride_row, sin_stride_column,
    positions_stride_batch, positions_stride_token, position_end, GROUP: tl.constexpr, D: tl.constexpr,
    PAIRS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, BLOCK_PAIRS: tl.constexpr, TILES: tl.constexpr
):  # fmt: skip
    """The gradient of one tile of queries of one head, and delta, what the softmax takes off every score's gradient."""
    # late rows tend to see more keys: they start first
    tile = tl.num_programs(TILES) - 1 - tl.program_id(TILES)
    b, h = find_head(Hq, TILES)
    kv_h = h // GROUP
    q_start = tile * BLOCK_M
    q_first = q_start + (k_len - q_len)
    q_last = tl.minimum(q_first + BLOCK_M, k_len) - 1
    row = q_start + tl.arange(0, BLOCK_M)
    q_pos = row + (k_len - q_len)
    units = scale * LOG2E

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
    first, full_first, full_last, last = key_tiles(q_first, q_last, k_len, BLOCK_N)
    for i in tl.range(first, last):
        k_start = i * BLOCK_N
        mixed = i >= full_last
        dq = learn_from_keys(
            dq, q_tile, dout_tile, lse, delta, k_desc, v_desc, b, kv_h, k_start, k_len, units, q_pos, BLOCK_N,
            BLOCK_D, BLOCK_DV, PRECISION, mixed=mixed
        )  # fmt: skip

    first_row = b.to(tl.int64) * q_len * Hq + h
    store_rows(dq_ptr + first_row * D, Hq * D, dq * scale, q_start, q_len, D)
    positions_base = positions_ptr
    if positions_ptr is not None:
        positions_base += b.to(tl.int64) * positions_stride_batch
    turn_back(
        dq_ptr + first_row * D, Hq * D, q_start, q_len, k_len - q_len, cos_ptr, cos_stride_row,
        cos_stride_column, sin_ptr, sin_stride_row, sin_stride_column, positions_base,
        positions_stride_token, position_end, PAIRS, BLOCK_PAIRS, BLOCK_M
    )  # fmt: skip
