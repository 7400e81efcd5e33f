# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/flash2_strided_k.yaml
#   content hash  9ac8bffda631ef80
#   text hash     1e5d1281faa1f89b
#   render with   attnforge render specs/flash2_strided_k.yaml
"""The forward pass of causal attention with keys loaded as columns, so that neighbouring elements are a whole row
apart in memory.

Formula, in natural-log units; q and k are positions, in `q . k` the rows there
    score = scale * (q . k)
    visible if k <= q   # causal
    lse = logsumexp of score over the visible keys
    out = sum of exp(score - lse) * v

Softmax, in log2 units
    s = (q . k) * scale_log2              # scale_log2 = scale * LOG2E, so that exp(score) = exp2(s)
    m = -inf, l = 0, acc = 0              # before the first tile of keys
    m_new = max(m, largest s of the tile)
    p = exp2(s - m_new)                   # 0 where the key is hidden
    l = l * exp2(m - m_new) + sum of p
    acc = acc * exp2(m - m_new) + p @ v   # at the end, out = acc / l
    lse = m + log2(l)
    The LSE in memory is in log2 units. For a row with no visible key it is inf, so that each exp2(s - lse) is 0, and
    out is 0. launch.py returns the LSE in natural-log units, lse / LOG2E, and -inf for such a row.

Programs
    forward   a tile of BLOCK_M queries of one query head of a batch entry; loops over tiles of BLOCK_N keys, loaded as
              columns by pointers
    The grid of `forward` is (heads of a group, tiles, groups) or, from 65536 tiles on, (tiles, heads of a group,
    groups); TILE_AXIS, 1 or 0, is the axis of the tiles. Heads are numbered across all batch entries; a group has as
    many as keep the rows that their programs loop over within a third of the L2 cache.
    There is no backward pass.

Tensors, by their axes
    q               [B, q_total, Hq, D]
    out             [B, q_total, Hq, DV]
    k               [B, k_total, Hkv, D]
    v               [B, k_total, Hkv, DV]
    lse             [B, Hq, q_total], float32, the LSE in log2 units
    x_desc          for q, k, v: loads tiles of x at [b, h, row, column]; a TMA descriptor, or a tuple of pointer,
                    width, strides
    x_ptr, x_base   pointers to the first value of x, and to the first one of the program's own values
    x_stride_a      stride of x along axis a; 0 if one value stands for all

Tiles
    q_tile, k_tile, v_tile   [BLOCK_M, BLOCK_D], [BLOCK_D, BLOCK_N], [BLOCK_N, BLOCK_DV]
    score, p                 [BLOCK_M, BLOCK_N]
    acc, m, l                [BLOCK_M, BLOCK_DV], [BLOCK_M], [BLOCK_M, 8] (partial sums, added up at the end), in
                             float32
    BLOCK_M, BLOCK_N         number of queries and of keys of a tile, from a table by kernel, GPU and head size
    BLOCK_D, BLOCK_DV        D and DV rounded up to a power of 2, from 16 to 512; columns past D and DV hold 0

Symbols
    b                       batch entry
    Hq, h                   number of query heads, and the index of one
    kv_h, GROUP             the key head that query head h reads, h // GROUP, and the number of query heads that share
                            it
    q_len, k_len            number of queries and of keys of a sequence
    D                       head size of q and k
    DV                      head size of v and out
    scale                   factor of q . k
    scale_log2              scale * LOG2E
    LOG2E                   log2(e): converts natural-log units to log2 units
    q_start, k_start        first row of a tile of queries, first key of a tile of keys, within the sequence
    row                     rows of a tile's queries, counted from the sequence's first one
    q_begin                 the position of row 0: k_len - q_len, which aligns the last query with the last key, unless
                            the call gives another
    q_pos                   positions of a tile's queries, row + q_begin
    k_pos                   positions of a tile's keys
    q_first                 first position of a tile of queries
    q_last                  last position of a tile of queries, below k_len
    first, last             range [first, last) of the tiles with something visible to the program's own tile
    full_first, full_last   range of the tiles that are fully visible to it: no step there needs the mask
    mixed                   whether a step applies the mask
    TILE_AXIS               the grid axis along which programs own tiles
    m, l, acc               running maximum (in log2 units), denominator and numerator of the softmax
    p                       weights, before the division by l
    pivot                   the value that a step subtracts from scores
    shrink                  the factor of earlier sums as m grows
    q_offset, k_offset      first row of a batch entry that counts
    q_total, k_total        rows of the tensors per batch entry
    entries_ptr             per batch entry, the values that `find_entry` returns, and q_begin; None if all rows count
    keys, terms             tuples of the values that a kernel passes to every step and that no step changes
    PRECISION               how float32 is multiplied: ieee, or tf32 if PyTorch uses it; no effect on 16-bit types
    BLOCK                   rows of a tile, in functions used for both queries and keys
    ROWS, COLUMNS, WIDTH    rows and columns of a tile, and how many of the columns the tensor has
    count                   number of rows or tokens: one past the last index
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


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
def elements(ptr):
    """Number of elements in 16 bytes, the unit of strides, with which the compiler can vectorise the loads."""
    return 128 // ptr.dtype.element_ty.primitive_bitwidth


@triton.jit
def load_columns(ptr, stride, first, count, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Load rows of a head as the columns of a [ROWS, COLUMNS] tile; 0 from row `count` of the head on."""
    row = tl.arange(0, ROWS)
    column = first + tl.arange(0, COLUMNS)
    inside = (row < WIDTH)[:, None] & (column < count)[None, :]
    return tl.load(ptr + row[:, None] + column.to(tl.int64)[None, :] * (stride * elements(ptr)), mask=inside, other=0.0)


@triton.jit
def batch_and_head(heads, TILE_AXIS: tl.constexpr):
    """Batch entry and head of this program; axis 2 of the grid counts groups of heads."""
    place = tl.program_id(2) * tl.num_programs(1 - TILE_AXIS) + tl.program_id(1 - TILE_AXIS)
    return place // heads, place % heads


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
    k_base, k_stride_row, D, v_desc, b, k_offset, kv_h, k_len = keys
    scale_log2, q_pos = terms
    # [BLOCK_N]
    k_pos = k_start + tl.arange(0, BLOCK_N)
    # [BLOCK_D, BLOCK_N]
    k_tile = load_columns(k_base, k_stride_row, k_start, k_len, D, BLOCK_D, BLOCK_N)
    score = tl.dot(q_tile, k_tile, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    # [BLOCK_N, BLOCK_DV]
    v_tile = load_tile(v_desc, b, kv_h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_DV)
    if mixed:
        keep = k_pos[None, :] <= q_pos[:, None]  # causal
        score = tl.where(keep, score, float("-inf"))
    # [BLOCK_M]
    m_new = tl.maximum(m, tl.max(score, 1) * scale_log2)
    # a row that has seen no key yet has m = -inf: subtract 0 instead, as -inf - -inf is NaN
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(score * scale_log2 - pivot[:, None])  # [BLOCK_M, BLOCK_N]
    shrink = tl.exp2(m - pivot)  # [BLOCK_M]
    acc, l, m = acc * shrink[:, None], l * shrink[:, None], m_new
    acc = add_product(acc, p.to(v_tile.dtype), v_tile, PRECISION)  # [BLOCK_M, BLOCK_DV]
    return acc, m, l + partial_row_sums(p)


@triton.jit(do_not_specialize=["q_total", "k_total", "Hq"])
def forward(
    q_desc, v_desc, k_ptr, out_ptr, lse_ptr, entries_ptr, scale, k_stride_batch, k_stride_row, k_stride_head,
    q_total, k_total, Hq, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr,
    TILE_AXIS: tl.constexpr
):  # fmt: skip
    """Store out and the LSE of one tile of queries of one head."""
    # late rows tend to see more keys, so they start first
    tile = tl.num_programs(TILE_AXIS) - 1 - tl.program_id(TILE_AXIS)
    b, h = batch_and_head(Hq, TILE_AXIS)
    kv_h = h // GROUP
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
    scale_log2 = scale * LOG2E

    k_base = k_ptr + (
        b.to(tl.int64) * k_stride_batch
        + tl.cast(k_offset, tl.int64) * k_stride_row
        + tl.cast(kv_h, tl.int64) * k_stride_head
    ) * elements(k_ptr)
    # [BLOCK_M, BLOCK_D]
    q_tile = load_tile(q_desc, b, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_D)
    # [BLOCK_M, BLOCK_DV]
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    # [BLOCK_M]
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    # [BLOCK_M, 8]
    l = tl.full([BLOCK_M, 8], 0.0, tl.float32)
    keys = (k_base, k_stride_row, D, v_desc, b, k_offset, kv_h, k_len)
    terms = (scale_log2, q_pos)
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
