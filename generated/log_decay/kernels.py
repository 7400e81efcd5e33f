# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/log_decay.yaml
#   content hash  122116125e8f8349
#   text hash     5312069010d573db
#   render with   attnforge render specs/log_decay.yaml
"""The kernels: Causal attention that forgets by a decay learned for each token and head.

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
def in_documents(
    ptr, part, stride, own_first, own_last, shift, first, full_first, full_last, last, BLOCK: tl.constexpr
):
    """Keeps a range of tiles to the documents of a tile's own tokens; those that lie in all of them need no mask.

    Where a token's document begins and ends stands two and three parts behind its sum; row 0 has the position `shift`.
    """
    at_first, at_last = tl.maximum(own_first, 0).to(tl.int64) * stride, tl.maximum(own_last, 0).to(tl.int64) * stride
    begin = tl.load(ptr + 2 * part + at_first).to(tl.int32, bitcast=True) - shift
    full_begin = tl.load(ptr + 2 * part + at_last).to(tl.int32, bitcast=True) - shift
    full_end = tl.load(ptr + 3 * part + at_first).to(tl.int32, bitcast=True) - shift
    end = tl.load(ptr + 3 * part + at_last).to(tl.int32, bitcast=True) - shift
    first = tl.maximum(first, tl.maximum(begin, 0) // BLOCK)
    last = tl.maximum(tl.minimum(last, tl.cdiv(tl.maximum(end, 0), BLOCK)), first)
    full_first = tl.minimum(tl.maximum(full_first, tl.cdiv(tl.maximum(full_begin, 0), BLOCK)), last)
    full_last = tl.maximum(tl.minimum(full_last, tl.maximum(full_end, 0) // BLOCK), full_first)
    return first, tl.maximum(full_first, first), tl.maximum(full_last, first), last


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
def attend(
    acc, m, l, q_tile, k_desc, v_desc, b, kv_h, k_start, k_len, scale, q_pos, log_decay_base,
    log_decay_at_begin_q, log_decay_anchor, log_decay_q, log_decay_desc, log_decay_stride_token,
    log_decay_stride_part, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr, mixed
):  # fmt: skip
    """Adds one tile of keys to the running softmax."""
    k_pos = k_start + tl.arange(0, BLOCK_N)
    k_tile = load_tile(k_desc, b, kv_h, k_start, k_len, BLOCK_N, BLOCK_D)
    score = tl.dot(q_tile, k_tile.T, input_precision=PRECISION) * scale  # [BLOCK_M, BLOCK_N]
    log_decay_k = (
        load_rows(log_decay_desc, log_decay_base, k_start, log_decay_stride_token, k_len, BLOCK_N)
        - log_decay_anchor
        + load_rows(
            log_decay_desc, log_decay_base + log_decay_stride_part, k_start, log_decay_stride_token, k_len, BLOCK_N
        )
    )
    score = score + (log_decay_q[:, None] - log_decay_k[None, :])  # log_decay
    v_tile = load_tile(v_desc, b, kv_h, k_start, k_len, BLOCK_N, BLOCK_DV)
    if mixed:
        keep = (k_pos < k_len)[None, :]
        keep &= k_pos[None, :] <= q_pos[:, None]  # causal
        keep &= log_decay_at_begin_q[:, None] <= k_pos[None, :]  # a document of log_decay
        score = tl.where(keep, score, float("-inf"))
    m_new = tl.maximum(m, tl.max(score, 1) * LOG2E)
    # a row that has seen no key yet keeps m = -inf: measure it from 0, or -inf - -inf is NaN
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(score * LOG2E - pivot[:, None])
    shrink = tl.exp2(m - pivot)
    acc, l, m = acc * shrink[:, None], l * shrink[:, None], m_new
    acc = add_product(acc, p.to(v_tile.dtype), v_tile, PRECISION)  # [BLOCK_M, BLOCK_DV]
    return acc, m, l + sums_by_thread(p)


@triton.jit(do_not_specialize=["q_len", "k_len", "Hq"])
def forward(
    q_desc, k_desc, v_desc, log_decay_desc, out_ptr, lse_ptr, scale, log_decay_ptr, q_len, k_len, Hq,
    log_decay_stride_batch, log_decay_stride_head, log_decay_stride_token, log_decay_stride_part,
    GROUP: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, TILES: tl.constexpr
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
    log_decay_base = tl.cast(b, tl.int64) * log_decay_stride_batch + tl.cast(h, tl.int64) * log_decay_stride_head
    log_decay_at_begin_q = load_vector(
        log_decay_ptr + log_decay_base + 2 * log_decay_stride_part, q_first, log_decay_stride_token, k_len, BLOCK_M
    ).to(tl.int32, bitcast=True)
    log_decay_anchor = tl.load(
        log_decay_ptr + log_decay_base + tl.maximum(q_first, 0).to(tl.int64) * log_decay_stride_token
    )
    log_decay_q = (
        load_vector(log_decay_ptr + log_decay_base, q_first, log_decay_stride_token, k_len, BLOCK_M)
        - log_decay_anchor
        + load_vector(
            log_decay_ptr + log_decay_base + log_decay_stride_part, q_first, log_decay_stride_token, k_len, BLOCK_M
        )
    )

    q_tile = load_tile(q_desc, b, h, q_start, q_len, BLOCK_M, BLOCK_D)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M, 8], tl.float32)
    first, full_first, full_last, last = key_tiles(q_first, q_last, k_len, BLOCK_N)
    first, full_first, full_last, last = in_documents(
        log_decay_ptr + log_decay_base,
        log_decay_stride_part,
        log_decay_stride_token,
        q_first,
        q_last,
        0,
        first,
        full_first,
        full_last,
        last,
        BLOCK_N,
    )
    if BLOCK_DV <= 128:
        for j in tl.range(first, last):
            i = first + last - 1 - j  # from the diagonal back
            k_start = i * BLOCK_N
            mixed = (i < full_first) | (i >= full_last)
            acc, m, l = attend(
                acc, m, l, q_tile, k_desc, v_desc, b, kv_h, k_start, k_len, scale, q_pos, log_decay_base,
                log_decay_at_begin_q, log_decay_anchor, log_decay_q, log_decay_desc, log_decay_stride_token,
                log_decay_stride_part, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION, mixed=mixed
            )  # fmt: skip
    else:
        # a branch between products of this width costs more than a loop that mixed tiles have to themselves
        left = full_first - first
        for i in tl.range(0, left + last - full_last):
            k_start = tl.where(i < left, first + i, full_last + i - left) * BLOCK_N
            acc, m, l = attend(
                acc, m, l, q_tile, k_desc, v_desc, b, kv_h, k_start, k_len, scale, q_pos, log_decay_base,
                log_decay_at_begin_q, log_decay_anchor, log_decay_q, log_decay_desc, log_decay_stride_token,
                log_decay_stride_part, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION, mixed=True
            )  # fmt: skip
        for i in tl.range(full_first, full_last):
            k_start = i * BLOCK_N
            acc, m, l = attend(
                acc, m, l, q_tile, k_desc, v_desc, b, kv_h, k_start, k_len, scale, q_pos, log_decay_base,
                log_decay_at_begin_q, log_decay_anchor, log_decay_q, log_decay_desc, log_decay_stride_token,
                log_decay_stride_part, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION, mixed=False
            )  # fmt: skip

    l = tl.sum(l, 1)
    # rows without keys: 0, and an LSE that makes every weight 0
    out = acc / tl.where(l == 0, 1.0, l)[:, None]
    store_rows(out_ptr + (b.to(tl.int64) * q_len * Hq + h) * DV, Hq * DV, out, q_start, q_len, DV)
    lse = tl.where(l == 0, float("inf"), m + tl.log2(l))
    tl.store(lse_ptr + (b.to(tl.int64) * Hq + h) * q_len + row, lse, mask=row < q_len)


@triton.jit
def learn_from_queries(
    dk, dv, log_decay_k_sum, k_tile, v_tile, q_desc, dout_desc, lse_desc, delta_desc, row_base, b, h, q_start,
    q_len, k_len, scale, k_pos, log_decay_base, log_decay_at_end_k, log_decay_anchor, log_decay_k, log_decay_desc,
    log_decay_stride_token, log_decay_stride_part, log_decay_k_sum_ptr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, mixed
):  # fmt: skip
    """Adds what one tile of queries teaches a tile of keys."""
    q_first = q_start + (k_len - q_len)
    row = q_start + tl.arange(0, BLOCK_M)
    q_pos = row + (k_len - q_len)
    q_tile = load_tile(q_desc, b, h, q_start, q_len, BLOCK_M, BLOCK_D)
    dout_tile = load_tile(dout_desc, b, h, q_start, q_len, BLOCK_M, BLOCK_DV)
    score = tl.dot(k_tile, q_tile.T, input_precision=PRECISION) * scale  # [BLOCK_N, BLOCK_M]
    log_decay_q = (
        load_rows(log_decay_desc, log_decay_base, q_first, log_decay_stride_token, k_len, BLOCK_M)
        - log_decay_anchor
        + load_rows(
            log_decay_desc, log_decay_base + log_decay_stride_part, q_first, log_decay_stride_token, k_len, BLOCK_M
        )
    )
    # log_decay
    score = score + (log_decay_q[None, :] - log_decay_k[:, None])
    lse = load_rows(lse_desc, row_base, q_start, 1, q_len, BLOCK_M)
    delta = load_rows(delta_desc, row_base, q_start, 1, q_len, BLOCK_M)
    dp = tl.dot(v_tile, dout_tile.T, input_precision=PRECISION)
    p = tl.exp2(score * LOG2E - lse[None, :])
    if mixed:
        delta = tl.where(row < q_len, delta, 0.0)
        keep = (row < q_len)[None, :]
        keep &= k_pos[:, None] <= q_pos[None, :]  # causal
        keep &= q_pos[None, :] < log_decay_at_end_k[:, None]  # a document of log_decay
        p = tl.where(keep, p, 0.0)
    dv = add_product(dv, p.to(dout_tile.dtype), dout_tile, PRECISION)  # [BLOCK_N, BLOCK_DV]
    ds = p * (dp - delta[None, :])
    if log_decay_k_sum_ptr is not None:
        log_decay_k_sum -= tl.sum(ds, 1)
    dk = add_product(dk, ds.to(q_tile.dtype), q_tile, PRECISION)  # [BLOCK_N, BLOCK_D]
    return dk, dv, log_decay_k_sum


@triton.jit(do_not_specialize=["q_len", "k_len", "Hq"])
def backward_dkv(
    q_desc, k_desc, v_desc, dout_desc, lse_desc, delta_desc, log_decay_desc, dk_ptr, dv_ptr, scale, log_decay_ptr,
    log_decay_k_sum_ptr, q_len, k_len, Hq, log_decay_stride_batch, log_decay_stride_head, log_decay_stride_token,
    log_decay_stride_part, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr,
    TILES: tl.constexpr
):  # fmt: skip
    """The gradients of one tile of keys and values of one head, summed over the query heads that read it."""
    tile = tl.program_id(TILES)
    Hkv = Hq // GROUP
    b, kv_h = find_head(Hkv, TILES)
    k_start = tile * BLOCK_N
    k_first = k_start
    k_last = tl.minimum(k_start + BLOCK_N, k_len) - 1
    k_pos = k_start + tl.arange(0, BLOCK_N)

    k_tile = load_tile(k_desc, b, kv_h, k_start, k_len, BLOCK_N, BLOCK_D)
    v_tile = load_tile(v_desc, b, kv_h, k_start, k_len, BLOCK_N, BLOCK_DV)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    for h in tl.range(kv_h * GROUP, (kv_h + 1) * GROUP):
        row_base = (b.to(tl.int64) * Hq + h) * q_len
        log_decay_base = tl.cast(b, tl.int64) * log_decay_stride_batch + tl.cast(h, tl.int64) * log_decay_stride_head
        log_decay_at_end_k = load_vector(
            log_decay_ptr + log_decay_base + 3 * log_decay_stride_part, k_start, log_decay_stride_token, k_len, BLOCK_N
        ).to(tl.int32, bitcast=True)
        log_decay_anchor = tl.load(
            log_decay_ptr + log_decay_base + tl.maximum(k_first, 0).to(tl.int64) * log_decay_stride_token
        )
        log_decay_k = (
            load_vector(log_decay_ptr + log_decay_base, k_start, log_decay_stride_token, k_len, BLOCK_N)
            - log_decay_anchor
            + load_vector(
                log_decay_ptr + log_decay_base + log_decay_stride_part, k_start, log_decay_stride_token, k_len, BLOCK_N
            )
        )
        log_decay_k_sum = tl.zeros([BLOCK_N], tl.float32)
        first, full_first, full_last, last = query_tiles(k_first, k_last, q_len, k_len, BLOCK_M)
        first, full_first, full_last, last = in_documents(
            log_decay_ptr + log_decay_base,
            log_decay_stride_part,
            log_decay_stride_token,
            k_first,
            k_last,
            k_len - q_len,
            first,
            full_first,
            full_last,
            last,
            BLOCK_M,
        )
        for i in tl.range(first, last):
            q_start = i * BLOCK_M
            mixed = (i < full_first) | (i >= full_last)
            dk, dv, log_decay_k_sum = learn_from_queries(
                dk, dv, log_decay_k_sum, k_tile, v_tile, q_desc, dout_desc, lse_desc, delta_desc, row_base, b, h,
                q_start, q_len, k_len, scale, k_pos, log_decay_base, log_decay_at_end_k, log_decay_anchor,
                log_decay_k, log_decay_desc, log_decay_stride_token, log_decay_stride_part, log_decay_k_sum_ptr,
                BLOCK_M, BLOCK_D, BLOCK_DV, PRECISION, mixed=mixed
            )  # fmt: skip
        if log_decay_k_sum_ptr is not None:
            tl.store(
                log_decay_k_sum_ptr + (b.to(tl.int64) * Hq + h) * k_len + k_pos, log_decay_k_sum, mask=k_pos < k_len
            )

    first_row = b.to(tl.int64) * k_len * Hkv + kv_h
    store_rows(dk_ptr + first_row * D, Hkv * D, dk * scale, k_start, k_len, D)
    store_rows(dv_ptr + first_row * DV, Hkv * DV, dv, k_start, k_len, DV)


@triton.jit
def learn_from_keys(
    dq, log_decay_q_sum, q_tile, dout_tile, lse, delta, k_desc, v_desc, b, kv_h, k_start, k_len, scale, q_pos,
    log_decay_base, log_decay_at_begin_q, log_decay_anchor, log_decay_q, log_decay_desc, log_decay_stride_token,
    log_decay_stride_part, log_decay_q_sum_ptr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, mixed
):  # fmt: skip
    """Adds what one tile of keys teaches a tile of queries."""
    k_pos = k_start + tl.arange(0, BLOCK_N)
    k_tile = load_tile(k_desc, b, kv_h, k_start, k_len, BLOCK_N, BLOCK_D)
    v_tile = load_tile(v_desc, b, kv_h, k_start, k_len, BLOCK_N, BLOCK_DV)
    score = tl.dot(q_tile, k_tile.T, input_precision=PRECISION) * scale  # [BLOCK_M, BLOCK_N]
    log_decay_k = (
        load_rows(log_decay_desc, log_decay_base, k_start, log_decay_stride_token, k_len, BLOCK_N)
        - log_decay_anchor
        + load_rows(
            log_decay_desc, log_decay_base + log_decay_stride_part, k_start, log_decay_stride_token, k_len, BLOCK_N
        )
    )
    # log_decay
    score = score + (log_decay_q[:, None] - log_decay_k[None, :])
    dp = tl.dot(dout_tile, v_tile.T, input_precision=PRECISION)
    p = tl.exp2(score * LOG2E - lse[:, None])
    if mixed:
        keep = (k_pos < k_len)[None, :]
        keep &= k_pos[None, :] <= q_pos[:, None]  # causal
        keep &= log_decay_at_begin_q[:, None] <= k_pos[None, :]  # a document of log_decay
        p = tl.where(keep, p, 0.0)
    ds = p * (dp - delta[:, None])
    if log_decay_q_sum_ptr is not None:
        log_decay_q_sum += tl.sum(ds, 1)
    dq = add_product(dq, ds.to(k_tile.dtype), k_tile, PRECISION)  # [BLOCK_M, BLOCK_D]
    return dq, log_decay_q_sum


@triton.jit(do_not_specialize=["q_len", "k_len", "Hq"])
def backward_dq(
    q_desc, k_desc, v_desc, out_desc, dout_desc, log_decay_desc, dq_ptr, lse_ptr, dlse_ptr, delta_ptr, scale,
    log_decay_ptr, log_decay_q_sum_ptr, q_len, k_len, Hq, log_decay_stride_batch, log_decay_stride_head,
    log_decay_stride_token, log_decay_stride_part, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr,
    TILES: tl.constexpr
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
    log_decay_base = tl.cast(b, tl.int64) * log_decay_stride_batch + tl.cast(h, tl.int64) * log_decay_stride_head
    log_decay_at_begin_q = load_vector(
        log_decay_ptr + log_decay_base + 2 * log_decay_stride_part, q_first, log_decay_stride_token, k_len, BLOCK_M
    ).to(tl.int32, bitcast=True)
    log_decay_anchor = tl.load(
        log_decay_ptr + log_decay_base + tl.maximum(q_first, 0).to(tl.int64) * log_decay_stride_token
    )
    log_decay_q = (
        load_vector(log_decay_ptr + log_decay_base, q_first, log_decay_stride_token, k_len, BLOCK_M)
        - log_decay_anchor
        + load_vector(
            log_decay_ptr + log_decay_base + log_decay_stride_part, q_first, log_decay_stride_token, k_len, BLOCK_M
        )
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
    log_decay_q_sum = tl.zeros([BLOCK_M], tl.float32)
    first, full_first, full_last, last = key_tiles(q_first, q_last, k_len, BLOCK_N)
    first, full_first, full_last, last = in_documents(
        log_decay_ptr + log_decay_base,
        log_decay_stride_part,
        log_decay_stride_token,
        q_first,
        q_last,
        0,
        first,
        full_first,
        full_last,
        last,
        BLOCK_N,
    )
    for i in tl.range(first, last):
        k_start = i * BLOCK_N
        mixed = (i < full_first) | (i >= full_last)
        dq, log_decay_q_sum = learn_from_keys(
            dq, log_decay_q_sum, q_tile, dout_tile, lse, delta, k_desc, v_desc, b, kv_h, k_start, k_len, scale,
            q_pos, log_decay_base, log_decay_at_begin_q, log_decay_anchor, log_decay_q, log_decay_desc,
            log_decay_stride_token, log_decay_stride_part, log_decay_q_sum_ptr, BLOCK_N, BLOCK_D, BLOCK_DV,
            PRECISION, mixed=mixed
        )  # fmt: skip

    first_row = b.to(tl.int64) * q_len * Hq + h
    store_rows(dq_ptr + first_row * D, Hq * D, dq * scale, q_start, q_len, D)
    if log_decay_q_sum_ptr is not None:
        tl.store(
            log_decay_q_sum_ptr + (b.to(tl.int64) * Hq + h) * k_len + q_pos,
            log_decay_q_sum,
            mask=(row < q_len) & (q_pos >= 0),
        )


@triton.jit
def later(a, b):
    """The greater of two places."""
    return tl.maximum(a, b)


@triton.jit
def last_of(x):
    """The last value of a vector."""
    return tl.sum(tl.where(tl.arange(0, x.shape[0]) == x.shape[0] - 1, x, 0))


@triton.jit(do_not_specialize=["count", "heads"])
def scan(
    x_ptr, sums_ptr, x_stride_batch, x_stride_head, x_stride_token, count, heads, RESET: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    """Cumulative sums over the tokens of one head of one sequence; what is no more than RESET begins a document.

    Four parts are written one behind the other: sums, what rounding to float32 left of them, where each token's document
    begins, and where it ends.
    """
    b, h = tl.program_id(0) // heads, tl.program_id(0) % heads
    x_ptr += b.to(tl.int64) * x_stride_batch + h.to(tl.int64) * x_stride_head
    total = count
    sums_ptr += tl.program_id(0).to(tl.int64) * 4 * count
    carry, first = tl.full([], 0.0, tl.float64), 0
    for start in tl.range(0, count, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + token.to(tl.int64) * x_stride_token, mask=token < count, other=0.0).to(tl.float64)
        sums = carry + tl.cumsum(tl.where(x <= RESET, 0.0, x), 0)
        rounded = sums.to(tl.float32)
        tl.store(sums_ptr + token, rounded, mask=token < count)
        tl.store(sums_ptr + total + token, (sums - rounded.to(tl.float64)).to(tl.float32), mask=token < count)
        begin = tl.maximum(tl.associative_scan(tl.where(x <= RESET, token, 0), 0, later), first)
        tl.store(sums_ptr + 2 * total + token, begin.to(tl.float32, bitcast=True), mask=token < count)
        carry, first = last_of(sums), last_of(begin)
    # from the end back: behind how many tokens the next document begins
    behind = 0
    for start in tl.range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        token = count - 1 - place
        after = tl.load(x_ptr + (token.to(tl.int64) + 1) * x_stride_token, mask=(token >= 0) & (place > 0), other=0.0)
        found = tl.maximum(tl.associative_scan(tl.where(after <= RESET, place, 0), 0, later), behind)
        tl.store(sums_ptr + 3 * total + token, (count - found).to(tl.float32, bitcast=True), mask=token >= 0)
        behind = last_of(found)


@triton.jit(do_not_specialize=["count", "heads"])
def scan_back(
    x_ptr, dsums_ptr, dx_ptr, x_stride_batch, x_stride_head, x_stride_token, count, heads, RESET: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    """The gradient of what was summed up: of each token the sum over those from it on."""
    b, h = tl.program_id(0) // heads, tl.program_id(0) % heads
    x_ptr += b.to(tl.int64) * x_stride_batch + h.to(tl.int64) * x_stride_head
    dsums_ptr += tl.program_id(0).to(tl.int64) * count
    dx_ptr += tl.program_id(0).to(tl.int64) * count
    carry = tl.full([], 0.0, tl.float64)
    for start in tl.range(0, count, BLOCK):
        token = count - 1 - start - tl.arange(0, BLOCK)
        dsums = tl.load(dsums_ptr + token, mask=token >= 0, other=0.0).to(tl.float64)
        dx = carry + tl.cumsum(dsums, 0)
        # what begins a document adds nothing
        x = tl.load(x_ptr + token.to(tl.int64) * x_stride_token, mask=token >= 0, other=0.0)
        tl.store(dx_ptr + token, tl.where(x <= RESET, 0.0, dx).to(dx_ptr.dtype.element_ty), mask=token >= 0)
        carry = last_of(dx)
