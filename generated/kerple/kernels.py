# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/kerple.yaml
#   content hash  12885767b1a23a00
#   text hash     0c3e402a4aa4858f
#   render with   attnforge render specs/kerple.yaml
"""Causal attention that falls with the logarithm of the distance, at a learned rate.

Formula, in natural-log units; q and k are positions, in `q . k` the rows there
    score = scale * (q . k)
    score = score - softplus(in_decay) * log(1 + softplus(in_width) * (q - k))
    visible if k <= q   # causal
    lse = logsumexp of score over the visible keys
    out = sum of exp(score - lse) * v

Softmax, in log2 units
    s = score * LOG2E                     # exp(score) = exp2(s)
    m = -inf, l = 0, acc = 0              # before the first tile of keys
    m_new = max(m, largest s of the tile)
    p = exp2(s - m_new)                   # 0 where the key is hidden
    l = l * exp2(m - m_new) + sum of p
    acc = acc * exp2(m - m_new) + p @ v   # at the end, out = acc / l
    lse = m + log2(l)
    The LSE in memory is in log2 units. For a row with no visible key it is inf, so that each exp2(s - lse) is 0, and
    out is 0. launch.py returns the LSE in natural-log units, lse / LOG2E, and -inf for such a row.

Backward
    p = exp2(score * LOG2E - lse)                 # 0 where the key is hidden
    dp = dout . v                                 # the gradient of p
    delta = rowsum(out * dout) - dlse             # dlse: gradient of the LSE in natural-log units, dlse_ptr * LOG2E
    ds = p * (dp - delta)                         # the gradient of the last score
    t0 = q - k
    t1 = 1 + softplus(in_width) * t0
    d score / d in_decay = -(sigmoid(in_decay) * log(t1))
    d score / d in_width = -(softplus(in_decay) * (sigmoid(in_width) * t0 / t1))
    in_decay_sum = sum of ds * (d score / d in_decay) over the scores that read it   # backward_dq, for each program
    din_decay = in_decay_sum                      # launch.py, summed over the axes that the input lacks
    in_width_sum = sum of ds * (d score / d in_width) over the scores that read it   # backward_dq, for each program
    din_width = in_width_sum                      # launch.py, summed over the axes that the input lacks
    dq = scale * sum of ds * k over the keys      # backward_dq
    dk = scale * sum of ds * q over the queries   # backward_dkv
    dv = sum of p * dout over the queries         # backward_dkv

Programs
    forward        a tile of BLOCK_M queries of one query head of a batch entry; loops over tiles of BLOCK_N keys
    backward_dq    the same; runs before the other backward kernels, for which it stores delta
    backward_dkv   a tile of BLOCK_N keys of one head of a batch entry; loops over tiles of BLOCK_M queries
    The grid of `forward`, `backward_dq` and `backward_dkv` is (heads of a group, tiles, groups) or, from 65536 tiles
    on, (tiles, heads of a group, groups); TILE_AXIS, 1 or 0, is the axis of the tiles. Heads are numbered across all
    batch entries; a group has as many as keep the rows that their programs loop over within a third of the L2 cache.

Tensors, by their axes
    q, dq           [B, q_total, Hq, D]
    out, dout       [B, q_total, Hq, DV]
    k, dk           [B, k_total, Hq, D]
    v, dv           [B, k_total, Hq, DV]
    lse, delta      [B, Hq, q_total], float32, the LSE in log2 units
    dlse            [B, Hq, q_total], float32: the gradient of lse as stored, or None
    in_decay        [head], float
    in_width        [head], float
    x_desc          for q, k, v, out, dout: loads tiles of x at [b, h, row, column]; a TMA descriptor, or a tuple of
                    pointer, width, strides
                    for others: loads the values of consecutive rows; a descriptor of one axis, or a pointer
    x_ptr, x_base   pointers to the first value of x, and to the first one of the program's own values
    x_stride_a      stride of x along axis a; 0 if one value stands for all

Tiles
    q_tile, k_tile, v_tile   [BLOCK_M, BLOCK_D], [BLOCK_N, BLOCK_D], [BLOCK_N, BLOCK_DV]
    score, p, dp, ds         [BLOCK_M, BLOCK_N], in `backward_dkv` [BLOCK_N, BLOCK_M]
    out_tile, dout_tile      [BLOCK_M, BLOCK_DV]
    dq, dk, dv               [BLOCK_M, BLOCK_D], [BLOCK_N, BLOCK_D], [BLOCK_N, BLOCK_DV], in float32
    acc, m, l                [BLOCK_M, BLOCK_DV], [BLOCK_M], [BLOCK_M, 8] (partial sums, added up at the end), in
                             float32
    BLOCK_M, BLOCK_N         number of queries and of keys of a tile, from a table by kernel, GPU and head size
    BLOCK_D, BLOCK_DV        D and DV rounded up to a power of 2, from 16 to 512; columns past D and DV hold 0

Symbols
    b                       batch entry
    Hq, h                   number of query heads, and the index of one
    q_len, k_len            number of queries and of keys of a sequence
    D                       head size of q and k
    DV                      head size of v and out
    scale                   factor of q . k
    LOG2E                   log2(e): converts natural-log units to log2 units
    MAKES                   the gradient that a launch computes, dk or dv, if heads are wider than 256; None: both
    q_start, k_start        first row of a tile of queries, first key of a tile of keys, within the sequence
    row                     rows of a tile's queries, counted from the sequence's first one
    q_begin                 the position of row 0: k_len - q_len, which aligns the last query with the last key, unless
                            the call gives another
    q_pos                   positions of a tile's queries, row + q_begin
    k_pos                   positions of a tile's keys
    q_at, k_at              q_pos and k_pos in float32, both minus the same number, for the computation of distances
    q_first                 first position of a tile of queries
    q_last                  last position of a tile of queries, below k_len
    k_first                 first position of a tile of keys
    k_last                  last position of a tile of keys, below k_len
    first, last             range [first, last) of the tiles with something visible to the program's own tile
    full_first, full_last   range of the tiles that are fully visible to it: no step there needs the mask
    mixed                   whether a step applies the mask
    TILE_AXIS               the grid axis along which programs own tiles
    m, l, acc               running maximum (in log2 units), denominator and numerator of the softmax
    p                       weights; in `forward`, before the division by l
    pivot                   the value that a step subtracts from scores
    shrink                  the factor of earlier sums as m grows
    dp, ds                  gradients of the weights and of the score
    delta                   rowsum(out * dout) - dlse, which the gradient of the softmax subtracts from each dp of a row
    q_offset, k_offset      first row of a batch entry that counts
    q_total, k_total        rows of the tensors per batch entry
    entries_ptr             per batch entry, the values that `find_entry` returns, and q_begin; None if all rows count
    row_base                offset of the program's batch entry and head in lse and delta
    first_row               first row of the program's batch entry and head in out, dq, dk or dv, as rows of one head
                            each
    keys, queries, terms    tuples of the values that a kernel passes to every step and that no step changes
    PRECISION               how float32 is multiplied: ieee, or tf32 if PyTorch uses it; no effect on 16-bit types
    BLOCK                   rows of a tile, in functions used for both queries and keys
    ROWS, COLUMNS, WIDTH    rows and columns of a tile, and how many of the columns the tensor has
    count                   number of rows or tokens: one past the last index
    in_decay                in_decay of the current sequence and head
    in_width                in_width of the current sequence and head
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def moved(x, y, first):
    """Positions in float32: x down a tile, and y across it from `first` on, both minus the same number.

    Differences are exact below 2**24. A thread holds two adjacent columns of every eight: their place in the eight
    moves to x, so that y is known at compile time.
    """
    place = y - first
    return (x - first - (place & 6)).to(tl.float32), (place & ~6).to(tl.float32)


@triton.jit
def softplus(x):
    """log(1 + exp(x)), which neither overflows nor rounds small values to 0."""
    small = tl.exp(-tl.abs(x))
    total = 1 + small
    # log(total) / (total - 1) undoes the rounding of 1 + small
    correction = tl.where(total == 1, small, tl.log(total) * (small / tl.where(total == 1, 1.0, total - 1)))
    return tl.maximum(x, 0.0) + correction


@triton.jit
def tile_range(lo, hi, full_lo, full_hi, BLOCK: tl.constexpr):
    """Range of the tiles that intersect [lo, hi), and of those inside [full_lo, full_hi)."""
    first = lo // BLOCK
    last = tl.maximum(tl.cdiv(hi, BLOCK), first)
    full_first = tl.minimum(tl.maximum(tl.cdiv(full_lo, BLOCK), first), last)
    full_last = tl.minimum(tl.maximum(full_hi // BLOCK, full_first), last)
    return first, full_first, full_last, last


@triton.jit
def key_tiles(q_first, q_last, k_len, BLOCK_N: tl.constexpr):
    """Range of key tiles that a query tile needs, and the range within it that needs no mask."""
    return tile_range(
        0,
        tl.minimum(q_last + 1, k_len),
        0,
        tl.minimum(q_first + 1, k_len),
        BLOCK_N,
    )


@triton.jit
def query_tiles(k_first, k_last, q_len, q_begin, BLOCK_M: tl.constexpr):
    """Range of query tiles that a key tile needs, and the range within it that needs no mask."""
    return tile_range(
        tl.maximum(k_first - q_begin, 0),
        q_len,
        tl.maximum(k_last - q_begin, 0),
        q_len,
        BLOCK_M,
    )


@triton.jit
def find_entry(entries_ptr, b, q_total, k_total):
    """First row and number of the queries of batch entry b, then of its keys; all rows if entries_ptr is None."""
    q_offset, q_len, k_offset, k_len = 0, q_total, 0, k_total
    if entries_ptr is not None:
        entry_ptr = entries_ptr + 5 * b
        q_offset, q_len = tl.load(entry_ptr), tl.load(entry_ptr + 1)
        k_offset, k_len = tl.load(entry_ptr + 2), tl.load(entry_ptr + 3)
    return q_offset, q_len, k_offset, k_len


@triton.jit
def load_tile(desc, b, h, first, end, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Load rows [first, first + ROWS) of a head by a TMA descriptor, or by pointers, with 0 from row `end` on."""
    if isinstance(desc, tl.core.tensor_descriptor_base):
        tile = desc.load([b, h, first, 0]).reshape([ROWS, COLUMNS])
    else:
        # strides are in units of 16 bytes, so that the compiler can vectorise the loads
        ptr, WIDTH, stride_batch, stride_head, stride_row = desc
        STEP: tl.constexpr = 128 // ptr.dtype.element_ty.primitive_bitwidth
        row = first + tl.arange(0, ROWS)
        column = tl.arange(0, COLUMNS)
        ptr += (tl.cast(b, tl.int64) * stride_batch + tl.cast(h, tl.int64) * stride_head) * STEP
        inside = (row < end)[:, None] & (column < WIDTH)[None, :]
        tile = tl.load(
            ptr + row.to(tl.int64)[:, None] * (tl.cast(stride_row, tl.int64) * STEP) + column[None, :],
            mask=inside,
            other=0.0,
        )
    return tile


@triton.jit
def to_32bit(x):
    """Cast floats to float32 and integers to int32."""
    return x.to(tl.float32 if x.dtype.is_floating() else tl.int32)


@triton.jit
def load_vector(ptr, row, stride, count):
    """Load the elements at the indices `row`; 0 outside [0, count)."""
    return to_32bit(tl.load(ptr + row.to(tl.int64) * stride, mask=(row >= 0) & (row < count), other=0))


@triton.jit
def batch_and_head(heads, TILE_AXIS: tl.constexpr):
    """Batch entry and head of this program; axis 2 of the grid counts groups of heads."""
    place = tl.program_id(2) * tl.num_programs(1 - TILE_AXIS) + tl.program_id(1 - TILE_AXIS)
    return place // heads, place % heads


@triton.jit
def load_rows(desc, base, first, row, stride, count):
    """Load one value for each row of a head from `first` on; the values of the head begin at `base`.

    Values outside [0, count) are 0, or belong to a neighbour.
    """
    if isinstance(desc, tl.core.tensor_descriptor_base):
        x = to_32bit(desc.load([tl.cast(base + first, tl.int32)]))
    else:
        x = load_vector(desc + base, row, stride, count)
    return x


@triton.jit
def add_product(total, a, b, PRECISION: tl.constexpr):
    """total + a @ b; float32 products are summed per tile first, which keeps the rounding errors of long sums small."""
    if a.dtype == tl.float32:
        # fma keeps the compiler from accumulating directly into the total
        return tl.fma(total, 1.0, tl.dot(a, b, input_precision=PRECISION))
    return tl.dot(a, b, total)


@triton.jit
def partial_row_sums(p):
    """Eight partial sums of each row, over every eighth column: threads add their own values and exchange none."""
    return tl.sum(p.reshape([p.shape[0], p.shape[1] // 8, 8]), 1)


@triton.jit
def store_rows(ptr, stride, x, first, count, WIDTH: tl.constexpr):
    """Store the first WIDTH columns of a tile's rows before row `count`."""
    row = first + tl.arange(0, x.shape[0])
    column = tl.arange(0, x.shape[1])
    inside = (row < count)[:, None] & (column < WIDTH)[None, :]
    tl.store(ptr + row.to(tl.int64)[:, None] * stride + column[None, :], x.to(ptr.dtype.element_ty), mask=inside)


@triton.jit
def attend(
    acc, m, l, q_tile, k_start, keys, terms, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr, mixed
):  # fmt: skip
    """Update the running softmax (acc, m, l) with one tile of keys."""
    k_desc, v_desc, b, k_offset, h, k_len = keys
    scale, q_pos, in_decay, in_width = terms
    # [BLOCK_N]
    k_pos = k_start + tl.arange(0, BLOCK_N)
    # [BLOCK_N, BLOCK_D]
    k_tile = load_tile(k_desc, b, h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_D)
    score = tl.dot(q_tile, k_tile.T, input_precision=PRECISION) * scale  # [BLOCK_M, BLOCK_N]
    # [BLOCK_M, BLOCK_N], [1, BLOCK_N]
    q_at, k_at = moved(q_pos[:, None], k_pos[None, :], k_start)
    score = score - softplus(in_decay) * tl.log(
        1 + softplus(in_width) * (q_at - k_at)
    )  # score - softplus(decay) * log(1 + softplus(width) * (q - k))
    # [BLOCK_N, BLOCK_DV]
    v_tile = load_tile(v_desc, b, h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_DV)
    if mixed:
        keep = k_pos[None, :] <= q_pos[:, None]  # causal
        score = tl.where(keep, score, float("-inf"))
    # [BLOCK_M]
    m_new = tl.maximum(m, tl.max(score, 1) * LOG2E)
    # a row that has seen no key yet has m = -inf: subtract 0 instead, as -inf - -inf is NaN
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(score * LOG2E - pivot[:, None])  # [BLOCK_M, BLOCK_N]
    shrink = tl.exp2(m - pivot)  # [BLOCK_M]
    acc, l, m = acc * shrink[:, None], l * shrink[:, None], m_new
    acc = add_product(acc, p.to(v_tile.dtype), v_tile, PRECISION)  # [BLOCK_M, BLOCK_DV]
    return acc, m, l + partial_row_sums(p)


@triton.jit(do_not_specialize=["q_total", "k_total", "Hq"])
def forward(
    q_desc, k_desc, v_desc, out_ptr, lse_ptr, entries_ptr, scale, in_decay_ptr, in_width_ptr, q_total, k_total,
    Hq, in_decay_stride_head, in_width_stride_head, DV: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr,
    TILE_AXIS: tl.constexpr
):  # fmt: skip
    """Store out and the LSE of one tile of queries of one head."""
    # late rows tend to see more keys, so they start first
    tile = tl.num_programs(TILE_AXIS) - 1 - tl.program_id(TILE_AXIS)
    b, h = batch_and_head(Hq, TILE_AXIS)
    q_start = tile * BLOCK_M
    q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
    if entries_ptr is not None:
        if q_start >= q_len:
            return
    q_begin = k_len - q_len if entries_ptr is None else tl.load(entries_ptr + 5 * b + 4)
    q_first = q_start + q_begin
    q_last = tl.minimum(q_first + BLOCK_M, q_len + q_begin) - 1
    # [BLOCK_M]
    row = q_start + tl.arange(0, BLOCK_M)
    q_pos = row + q_begin
    in_decay = tl.load(in_decay_ptr + tl.cast(h, tl.int64) * in_decay_stride_head).to(tl.float32)
    in_width = tl.load(in_width_ptr + tl.cast(h, tl.int64) * in_width_stride_head).to(tl.float32)

    # [BLOCK_M, BLOCK_D]
    q_tile = load_tile(q_desc, b, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_D)
    # [BLOCK_M, BLOCK_DV]
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    # [BLOCK_M]
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    # [BLOCK_M, 8]
    l = tl.full([BLOCK_M, 8], 0.0, tl.float32)
    keys = (k_desc, v_desc, b, k_offset, h, k_len)
    terms = (scale, q_pos, in_decay, in_width)
    first, full_first, full_last, last = key_tiles(q_first, q_last, k_len, BLOCK_N)
    if BLOCK_DV <= 128:
        for j in tl.range(first, last):
            i = first + last - 1 - j  # descending from the diagonal
            k_start = i * BLOCK_N
            mixed = i >= full_last
            acc, m, l = attend(
                acc, m, l, q_tile, k_start, keys, terms, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION, mixed=mixed
            )  # fmt: skip
    else:
        # a branch between products of this width costs more than separate loops for mixed tiles
        for i in tl.range(0, last - full_last):
            k_start = (last - 1 - i) * BLOCK_N
            acc, m, l = attend(
                acc, m, l, q_tile, k_start, keys, terms, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION, mixed=True
            )  # fmt: skip
        for i in tl.range(0, full_last - full_first):
            k_start = (full_last - 1 - i) * BLOCK_N
            acc, m, l = attend(
                acc, m, l, q_tile, k_start, keys, terms, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION, mixed=False
            )  # fmt: skip

    l = tl.sum(l, 1)  # [BLOCK_M]
    # rows without keys: out is 0, the LSE makes every weight 0
    # [BLOCK_M, BLOCK_DV]
    out = acc / tl.where(l == 0, 1.0, l)[:, None]
    store_rows(out_ptr + ((b.to(tl.int64) * q_total + q_offset) * Hq + h) * DV, Hq * DV, out, q_start, q_len, DV)
    # [BLOCK_M]
    lse = tl.where(l == 0, float("inf"), m + tl.log2(l))
    tl.store(lse_ptr + (b.to(tl.int64) * Hq + h) * q_total + q_offset + row, lse, mask=row < q_len)


@triton.jit
def accumulate_dkdv(
    dk, dv, k_tile, v_tile, q_start, queries, terms, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, MAKES: tl.constexpr, mixed
):  # fmt: skip
    """Accumulate dK and dV of a tile of keys over one tile of queries."""
    q_desc, dout_desc, lse_desc, delta_desc, row_base, b, q_offset, h, q_len = queries
    q_begin, scale, k_pos, in_decay, in_width = terms
    q_first = q_start + q_begin
    # [BLOCK_M]
    row = q_start + tl.arange(0, BLOCK_M)
    q_pos = row + q_begin
    # [BLOCK_M, BLOCK_D]
    q_tile = load_tile(q_desc, b, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_D)
    # [BLOCK_M, BLOCK_DV]
    dout_tile = load_tile(dout_desc, b, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_DV)
    score = tl.dot(k_tile, q_tile.T, input_precision=PRECISION) * scale  # [BLOCK_N, BLOCK_M]
    # [BLOCK_N, BLOCK_M], [1, BLOCK_M]
    k_at, q_at = moved(k_pos[:, None], q_pos[None, :], q_first)
    # score - softplus(decay) * log(1 + softplus(width) * (q - k))
    score = score - softplus(in_decay) * tl.log(1 + softplus(in_width) * (q_at - k_at))
    # [BLOCK_M]
    lse = load_rows(lse_desc, row_base, q_start, row, 1, q_len)
    delta = load_rows(delta_desc, row_base, q_start, row, 1, q_len)
    dp = tl.dot(v_tile, dout_tile.T, input_precision=PRECISION)  # [BLOCK_N, BLOCK_M]
    p = tl.exp2(score * LOG2E - lse[None, :])  # [BLOCK_N, BLOCK_M]
    if mixed:
        delta = tl.where(row < q_len, delta, 0.0)
        keep = (row < q_len)[None, :]
        keep &= k_pos[:, None] <= q_pos[None, :]  # causal
        p = tl.where(keep, p, 0.0)
    if MAKES != "dk":
        dv = add_product(dv, p.to(dout_tile.dtype), dout_tile, PRECISION)  # [BLOCK_N, BLOCK_DV]
    ds = p * (dp - delta[None, :])  # [BLOCK_N, BLOCK_M]
    if MAKES != "dv":
        dk = add_product(dk, ds.to(q_tile.dtype), q_tile, PRECISION)  # [BLOCK_N, BLOCK_D]
    return dk, dv


@triton.jit(do_not_specialize=["q_total", "k_total", "Hq"])
def backward_dkv(
    q_desc, k_desc, v_desc, dout_desc, lse_desc, delta_desc, dk_ptr, dv_ptr, entries_ptr, scale, in_decay_ptr,
    in_width_ptr, q_total, k_total, Hq, in_decay_stride_head, in_width_stride_head, D: tl.constexpr,
    DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr, TILE_AXIS: tl.constexpr, MAKES: tl.constexpr
):  # fmt: skip
    """Store dK and dV of one tile of keys of one head."""
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

    # [BLOCK_N, BLOCK_D]
    k_tile = load_tile(k_desc, b, h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_D)
    # [BLOCK_N, BLOCK_DV]
    v_tile = load_tile(v_desc, b, h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_DV)
    # [BLOCK_N, BLOCK_D]
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    # [BLOCK_N, BLOCK_DV]
    dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    first, full_first, full_last, last = query_tiles(k_first, k_last, q_len, q_begin, BLOCK_M)
    # a single head: without a loop, the compiler generates slower code for 256 columns
    for _ in tl.range(h, h + 1):
        row_base = (b.to(tl.int64) * Hq + h) * q_total + q_offset
        in_decay = tl.load(in_decay_ptr + tl.cast(h, tl.int64) * in_decay_stride_head).to(tl.float32)
        in_width = tl.load(in_width_ptr + tl.cast(h, tl.int64) * in_width_stride_head).to(tl.float32)
        queries = (q_desc, dout_desc, lse_desc, delta_desc, row_base, b, q_offset, h, q_len)
        terms = (q_begin, scale, k_pos, in_decay, in_width)
        for i in tl.range(first, last):
            q_start = i * BLOCK_M
            mixed = (i < full_first) | (i >= full_last)
            dk, dv = accumulate_dkdv(
                dk, dv, k_tile, v_tile, q_start, queries, terms, BLOCK_M, BLOCK_D, BLOCK_DV, PRECISION, MAKES,
                mixed=mixed
            )  # fmt: skip

    first_row = (b.to(tl.int64) * k_total + k_offset) * Hq + h
    if MAKES != "dv":
        store_rows(dk_ptr + first_row * D, Hq * D, dk * scale, k_start, k_len, D)
    if MAKES != "dk":
        store_rows(dv_ptr + first_row * DV, Hq * DV, dv, k_start, k_len, DV)


@triton.jit
def accumulate_dq(
    dq, in_decay_sum, in_width_sum, q_tile, dout_tile, lse, delta, k_start, keys, terms, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, mixed
):  # fmt: skip
    """Accumulate dQ of a tile of queries over one tile of keys."""
    k_desc, v_desc, b, k_offset, h, k_len = keys
    scale, q_pos, in_decay, in_width, in_decay_sum_ptr, in_width_sum_ptr = terms
    # [BLOCK_N]
    k_pos = k_start + tl.arange(0, BLOCK_N)
    # [BLOCK_N, BLOCK_D]
    k_tile = load_tile(k_desc, b, h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_D)
    # [BLOCK_N, BLOCK_DV]
    v_tile = load_tile(v_desc, b, h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_DV)
    score = tl.dot(q_tile, k_tile.T, input_precision=PRECISION) * scale  # [BLOCK_M, BLOCK_N]
    # [BLOCK_M, BLOCK_N], [1, BLOCK_N]
    q_at, k_at = moved(q_pos[:, None], k_pos[None, :], k_start)
    # score - softplus(decay) * log(1 + softplus(width) * (q - k))
    part0 = softplus(in_decay)
    part1 = q_at - k_at
    part2 = 1 + softplus(in_width) * part1
    part3 = tl.log(part2)
    slope0_1 = -(tl.sigmoid(in_decay) * part3)
    slope0_2 = -(part0 * (tl.sigmoid(in_width) * part1 / part2))
    score = score - part0 * part3
    dp = tl.dot(dout_tile, v_tile.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    p = tl.exp2(score * LOG2E - lse[:, None])  # [BLOCK_M, BLOCK_N]
    if mixed:
        keep = k_pos[None, :] <= q_pos[:, None]  # causal
        p = tl.where(keep, p, 0.0)
        slope0_1 = tl.where(keep, slope0_1, 0.0)
        slope0_2 = tl.where(keep, slope0_2, 0.0)
    ds = p * (dp - delta[:, None])  # [BLOCK_M, BLOCK_N]
    if in_decay_sum_ptr is not None:
        in_decay_sum += tl.sum(ds * slope0_1, 1)
    if in_width_sum_ptr is not None:
        in_width_sum += tl.sum(ds * slope0_2, 1)
    dq = add_product(dq, ds.to(k_tile.dtype), k_tile, PRECISION)  # [BLOCK_M, BLOCK_D]
    return dq, in_decay_sum, in_width_sum


@triton.jit(do_not_specialize=["q_total", "k_total", "Hq"])
def backward_dq(
    q_desc, k_desc, v_desc, out_desc, dout_desc, dq_ptr, lse_ptr, dlse_ptr, delta_ptr, entries_ptr, scale,
    in_decay_ptr, in_width_ptr, in_decay_sum_ptr, in_width_sum_ptr, q_total, k_total, Hq, in_decay_stride_head,
    in_width_stride_head, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, TILE_AXIS: tl.constexpr
):  # fmt: skip
    """Store dQ and delta, rowsum(out * dout) - dlse, of one tile of queries of one head."""
    # late rows tend to see more keys, so they start first
    tile = tl.num_programs(TILE_AXIS) - 1 - tl.program_id(TILE_AXIS)
    b, h = batch_and_head(Hq, TILE_AXIS)
    q_start = tile * BLOCK_M
    q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
    if entries_ptr is not None:
        if q_start >= q_len:
            return
    q_begin = k_len - q_len if entries_ptr is None else tl.load(entries_ptr + 5 * b + 4)
    q_first = q_start + q_begin
    q_last = tl.minimum(q_first + BLOCK_M, q_len + q_begin) - 1
    # [BLOCK_M]
    row = q_start + tl.arange(0, BLOCK_M)
    q_pos = row + q_begin
    in_decay = tl.load(in_decay_ptr + tl.cast(h, tl.int64) * in_decay_stride_head).to(tl.float32)
    in_width = tl.load(in_width_ptr + tl.cast(h, tl.int64) * in_width_stride_head).to(tl.float32)

    # [BLOCK_M, BLOCK_D]
    q_tile = load_tile(q_desc, b, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_D)
    # [BLOCK_M, BLOCK_DV]
    dout_tile = load_tile(dout_desc, b, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_DV)
    out_tile = load_tile(out_desc, b, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_DV)
    # [BLOCK_M]
    delta = tl.sum(out_tile.to(tl.float32) * dout_tile.to(tl.float32), 1)
    row_base = (b.to(tl.int64) * Hq + h) * q_total + q_offset
    if dlse_ptr is not None:
        # the derivative of the LSE with respect to a score is its weight, so that ds gains p * dlse
        delta -= tl.load(dlse_ptr + row_base + row, mask=row < q_len, other=0.0) * LOG2E
    # [BLOCK_M]
    lse = tl.load(lse_ptr + row_base + row, mask=row < q_len, other=0.0)
    tl.store(delta_ptr + row_base + row, delta, mask=row < q_len)
    # [BLOCK_M, BLOCK_D]
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # [BLOCK_M]
    in_decay_sum = tl.zeros([BLOCK_M], tl.float32)
    in_width_sum = tl.zeros([BLOCK_M], tl.float32)
    keys = (k_desc, v_desc, b, k_offset, h, k_len)
    terms = (scale, q_pos, in_decay, in_width, in_decay_sum_ptr, in_width_sum_ptr)
    first, _, full_last, last = key_tiles(q_first, q_last, k_len, BLOCK_N)
    for i in tl.range(first, last):
        k_start = i * BLOCK_N
        mixed = i >= full_last
        dq, in_decay_sum, in_width_sum = accumulate_dq(
            dq, in_decay_sum, in_width_sum, q_tile, dout_tile, lse, delta, k_start, keys, terms, BLOCK_N, BLOCK_D,
            BLOCK_DV, PRECISION, mixed=mixed
        )  # fmt: skip

    first_row = (b.to(tl.int64) * q_total + q_offset) * Hq + h
    store_rows(dq_ptr + first_row * D, Hq * D, dq * scale, q_start, q_len, D)
    if in_decay_sum_ptr is not None:
        in_decay_sum = tl.where(row < q_len, in_decay_sum, 0.0)
        tl.store(
            in_decay_sum_ptr + (b.to(tl.int64) * Hq + h) * tl.num_programs(TILE_AXIS) + tile, tl.sum(in_decay_sum, 0)
        )
    if in_width_sum_ptr is not None:
        in_width_sum = tl.where(row < q_len, in_width_sum, 0.0)
        tl.store(
            in_width_sum_ptr + (b.to(tl.int64) * Hq + h) * tl.num_programs(TILE_AXIS) + tile, tl.sum(in_width_sum, 0)
        )
