# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/flash1.yaml
#   content hash  9ab9962a61a7510a
#   text hash     21a0bbaf2ac29cd2
#   render with   attnforge render specs/flash1.yaml
"""Causal attention in the order of the first FlashAttention, forward only: each tile of keys processes all queries,
with the accumulators in memory.

Formula, in natural-log units; q and k are positions, in `q . k` the rows there
    score = scale * (q . k)
    visible if k <= q   # causal
    lse = logsumexp of score over the visible keys
    out = sum of exp(score - lse) * v

Softmax, in log2 units
    s = (q . k) * scale_log2                            # scale_log2 = scale * LOG2E, so that exp(score) = exp2(s)
    m = -inf, l = 0, acc = 0                            # before the first tile of keys
    m_new = max(m, largest s of the tile)
    p = exp2(s - m_new)                                 # 0 where the key is hidden
    l_new = l * exp2(m - m_new) + sum of p              # acc, m and l of all queries are kept in memory
    acc = (acc * l * exp2(m - m_new) + p @ v) / l_new   # at the end, out = acc
    lse = m + log2(l)
    The LSE in memory is in log2 units. For a row with no visible key it is inf, so that each exp2(s - lse) is 0, and
    out is 0. launch.py returns the LSE in natural-log units, lse / LOG2E, and -inf for such a row.

Programs
    forward   all of one query head of a batch entry; loads each tile of BLOCK_N keys once and loops over the tiles of
              BLOCK_M queries that see it; the grid has one axis, along which heads vary fastest
    There is no backward pass.

Tensors, by their axes
    q               [B, q_total, Hq, D]
    out             [B, q_total, Hq, DV]
    k               [B, k_total, Hkv, D]
    v               [B, k_total, Hkv, DV]
    lse             [B, Hq, q_total], float32, the LSE in log2 units
    acc; m, l       [B, Hq, q_total, DV]; [B, Hq, q_total], float32
    x_desc          for q, k, v: loads tiles of x at [b, h, row, column]; a TMA descriptor, or a tuple of pointer,
                    width, strides
    x_ptr, x_base   pointers to the first value of x, and to the first one of the program's own values
    x_stride_a      stride of x along axis a; 0 if one value stands for all

Tiles
    q_tile, k_tile, v_tile   [BLOCK_M, BLOCK_D], [BLOCK_N, BLOCK_D], [BLOCK_N, BLOCK_DV]
    score, p                 [BLOCK_M, BLOCK_N]
    acc, m, l                [BLOCK_M, BLOCK_DV], [BLOCK_M], [BLOCK_M], in float32
    BLOCK_M, BLOCK_N         number of queries and of keys of a tile, from a table by kernel, GPU and head size
    BLOCK_D, BLOCK_DV        D and DV rounded up to a power of 2, from 16 to 512; columns past D and DV hold 0

Symbols
    b                       batch entry
    Hq, h                   number of query heads, and the index of one
    kv_h, GROUP             the key head that query head h reads, h // GROUP, and the number of query heads that share
                            it
    q_len, k_len            number of queries and of keys of a sequence
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
    k_first                 first position of a tile of keys
    k_last                  last position of a tile of keys, below k_len
    first, last             range [first, last) of the tiles with something visible to the program's own tile
    full_first, full_last   range of the tiles that are fully visible to it: no step there needs the mask
    mixed                   whether a step applies the mask
    m, l, acc               running maximum (in log2 units), denominator and numerator of the softmax
    p                       weights, before the division by l
    pivot                   the value that a step subtracts from scores
    q_offset, k_offset      first row of a batch entry that counts
    q_total, k_total        rows of the tensors per batch entry
    entries_ptr             per batch entry, the values that `find_entry` returns, and q_begin; None if all rows count
    first_row               first row of the program's batch entry and head in out, dq, dk or dv, as rows of one head
                            each
    queries, terms          tuples of the values that a kernel passes to every step and that no step changes
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
def add_product(total, a, b, PRECISION: tl.constexpr):
    """total + a @ b; float32 products are summed per tile first, which keeps the rounding errors of long sums small."""
    if a.dtype == tl.float32:
        # fma keeps the compiler from accumulating directly into the total
        return tl.fma(total, 1.0, tl.dot(a, b, input_precision=PRECISION))
    return tl.dot(a, b, total)


@triton.jit
def store_rows(ptr, stride, x, first, count, WIDTH: tl.constexpr):
    """Store the first WIDTH columns of a tile's rows before row `count`."""
    row = first + tl.arange(0, x.shape[0])
    column = tl.arange(0, x.shape[1])
    inside = (row < count)[:, None] & (column < WIDTH)[None, :]
    tl.store(ptr + row.to(tl.int64)[:, None] * stride + column[None, :], x.to(ptr.dtype.element_ty), mask=inside)


@triton.jit
def attend(
    k_tile, v_tile, q_start, queries, terms, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr, mixed
):  # fmt: skip
    """Update the running softmax of one tile of queries, which is kept in memory, with one tile of keys."""
    q_desc, acc_base, m_base, l_base, DV, b, q_offset, h, q_len = queries
    q_begin, scale_log2, k_pos = terms
    # [BLOCK_M]
    row = q_start + tl.arange(0, BLOCK_M)
    q_pos = row + q_begin
    column = tl.arange(0, BLOCK_DV)
    inside = (row < q_len)[:, None] & (column < DV)[None, :]
    acc_place = acc_base + row.to(tl.int64)[:, None] * DV + column[None, :]
    q_tile = load_tile(q_desc, b, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_D)
    acc = tl.load(acc_place, mask=inside, other=0.0)
    m = tl.load(m_base + row, mask=row < q_len, other=float("-inf"))
    l = tl.load(l_base + row, mask=row < q_len, other=0.0)
    score = tl.dot(q_tile, k_tile.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    if mixed:
        keep = k_pos[None, :] <= q_pos[:, None]  # causal
        score = tl.where(keep, score, float("-inf"))
    m_new = tl.maximum(m, tl.max(score, 1) * scale_log2)
    # a row that has seen no key yet has m = -inf: subtract 0 instead, as -inf - -inf is NaN
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(score * scale_log2 - pivot[:, None])
    l_old = l * tl.exp2(m - pivot)
    added = tl.sum(p, 1)
    l_new = l_old + added
    acc = add_product(acc * l_old[:, None], p.to(v_tile.dtype), v_tile, PRECISION)  # [BLOCK_M, BLOCK_DV]
    acc = acc / tl.where(l_new == 0, 1.0, l_new)[:, None]
    # acc of a row to which nothing was added is not stored: another division could change its bits
    tl.store(acc_place, acc, mask=inside & (added != 0)[:, None])
    tl.store(m_base + row, m_new, mask=row < q_len)
    tl.store(l_base + row, l_new, mask=row < q_len)
    # the next step may read values that other threads wrote in this one
    tl.debug_barrier()


@triton.jit(do_not_specialize=["q_total", "k_total", "Hq"])
def forward(
    q_desc, k_desc, v_desc, acc_ptr, m_ptr, l_ptr, out_ptr, lse_ptr, entries_ptr, scale, q_total, k_total, Hq,
    GROUP: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Store out and the LSE of all queries of one head; each tile of keys is loaded once."""
    b, h = tl.program_id(0) // Hq, tl.program_id(0) % Hq
    kv_h = h // GROUP
    q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
    q_begin = k_len - q_len if entries_ptr is None else tl.load(entries_ptr + 5 * b + 4)
    scale_log2 = scale * LOG2E
    first_row = (b.to(tl.int64) * Hq + h) * q_total + q_offset
    acc_base, m_base, l_base = acc_ptr + first_row * DV, m_ptr + first_row, l_ptr + first_row

    for j in tl.range(0, tl.cdiv(k_len, BLOCK_N)):
        k_start = j * BLOCK_N
        k_first = k_start
        k_last = tl.minimum(k_start + BLOCK_N, k_len) - 1
        # [BLOCK_N]
        k_pos = k_start + tl.arange(0, BLOCK_N)
        k_tile = load_tile(k_desc, b, kv_h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_D)
        v_tile = load_tile(v_desc, b, kv_h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_DV)
        queries = (q_desc, acc_base, m_base, l_base, DV, b, q_offset, h, q_len)
        terms = (q_begin, scale_log2, k_pos)
        first, full_first, full_last, last = query_tiles(k_first, k_last, q_len, q_begin, BLOCK_M)
        # keys behind the last one need the mask
        full_last = tl.where(k_start + BLOCK_N <= k_len, full_last, full_first)
        for i in tl.range(first, last, num_stages=1):
            q_start = i * BLOCK_M
            mixed = (i < full_first) | (i >= full_last)
            attend(
                k_tile, v_tile, q_start, queries, terms, BLOCK_M, BLOCK_D, BLOCK_DV, PRECISION, mixed=mixed
            )  # fmt: skip

    # rows without keys: out is 0, the LSE makes every weight 0
    for i in tl.range(0, tl.cdiv(q_len, BLOCK_M)):
        row = i * BLOCK_M + tl.arange(0, BLOCK_M)
        column = tl.arange(0, BLOCK_DV)
        inside = (row < q_len)[:, None] & (column < DV)[None, :]
        out = tl.load(acc_base + row.to(tl.int64)[:, None] * DV + column[None, :], mask=inside)
        store_rows(
            out_ptr + ((b.to(tl.int64) * q_total + q_offset) * Hq + h) * DV, Hq * DV, out, i * BLOCK_M, q_len, DV
        )
        m, l = tl.load(m_base + row, mask=row < q_len), tl.load(l_base + row, mask=row < q_len)
        lse = tl.where(l == 0, float("inf"), m + tl.log2(l))
        tl.store(lse_ptr + first_row + row, lse, mask=row < q_len)
