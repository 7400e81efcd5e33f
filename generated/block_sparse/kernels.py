# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/block_sparse.yaml
#   content hash  bb15929332dffc50
#   text hash     b45c9c244f9d32e1
#   render with   attnforge render specs/block_sparse.yaml
"""Attention between the blocks of 64 positions that a mask allows.

Formula, in natural-log units; q and k are positions, in `q . k` the rows there
    score = scale * (q . k)
    visible if in_block_mask   # block_sparse
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

Backward
    p = exp2((q . k) * scale_log2 - lse)          # 0 where the key is hidden
    dp = dout . v                                 # the gradient of p
    delta = rowsum(out * dout) - dlse             # dlse: gradient of the LSE in natural-log units, dlse_ptr * LOG2E
    ds = p * (dp - delta)                         # the gradient of the last score
    dq = scale * sum of ds * k over the keys      # backward_dq
    dk = scale * sum of ds * q over the queries   # backward_dkv, over the query heads of a key head
    dv = sum of p * dout over the queries         # backward_dkv, over the query heads of a key head

Programs
    list_keys      a tile of queries of one query head of a batch entry: lists the tiles of keys that it needs; runs
                   before `forward` and `backward_dq`, with the same tiles
    list_queries   a tile of keys of one query head of a batch entry: lists the tiles of queries that it needs; runs
                   before `backward_dkv`, with the same tiles
    forward        a tile of BLOCK_M queries of one query head of a batch entry; loops over tiles of BLOCK_N keys
    backward_dq    the same; runs before the other backward kernels, for which it stores delta
    backward_dkv   a tile of BLOCK_N keys of one key head of a batch entry; loops over tiles of BLOCK_M queries of each
                   of the GROUP query heads that read it
    The grid of `forward`, `backward_dq` and `backward_dkv` is (heads of a group, tiles, groups) or, from 65536 tiles
    on, (tiles, heads of a group, groups); TILE_AXIS, 1 or 0, is the axis of the tiles. Heads are numbered across all
    batch entries; a group has as many as keep the rows that their programs loop over within a third of the L2 cache.
    Grids of one axis: `list_keys`, `list_queries`.

Tensors, by their axes
    q, dq           [B, q_total, Hq, D]
    out, dout       [B, q_total, Hq, DV]
    k, dk           [B, k_total, Hkv, D]
    v, dv           [B, k_total, Hkv, DV]
    lse, delta      [B, Hq, q_total], float32, the LSE in log2 units
    dlse            [B, Hq, q_total], float32: the gradient of lse as stored, or None
    in_block_mask   [batch, head, query // 64, key // 64], bool
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
    Hkv                     number of key heads
    kv_h, GROUP             the key head that query head h reads, h // GROUP, and the number of query heads that share
                            it
    q_len, k_len            number of queries and of keys of a sequence
    D                       head size of q and k
    DV                      head size of v and out
    scale                   factor of q . k
    scale_log2              scale * LOG2E
    LOG2E                   log2(e): converts natural-log units to log2 units
    MAKES                   the gradient that a launch computes, dk or dv, if heads are wider than 256; None: both
    q_start, k_start        first row of a tile of queries, first key of a tile of keys, within the sequence
    row                     rows of a tile's queries, counted from the sequence's first one
    q_begin                 the position of row 0: k_len - q_len, which aligns the last query with the last key, unless
                            the call gives another
    k_pos                   positions of a tile's keys
    q_first                 first position of a tile of queries
    q_last                  last position of a tile of queries, below k_len
    k_first                 first position of a tile of keys
    k_last                  last position of a tile of keys, below k_len
    first, last             range [first, last) of the places in the list for the program's own tile
    full_first, full_last   range of the places of fully visible tiles: no step there needs the mask
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
    q_tiles, k_tiles        number of tiles of queries and of keys
    key_lists_ptr, query_lists_ptr
                            for each tile of queries the tiles of keys that it needs, or vice versa
    key_list, query_list    the list for the program's own tile: two numbers, then tiles, as `tile_list` says
    x_least, x_most         minimum and maximum of x along a tile, as stored there
    others, some, every     tiles of the other side; for each, whether some of it is visible, and all of it
    keys, queries, terms    tuples of the values that a kernel passes to every step and that no step changes
    PRECISION               how float32 is multiplied: ieee, or tf32 if PyTorch uses it; no effect on 16-bit types
    BLOCK                   rows of a tile, in functions used for both queries and keys
    ROWS, COLUMNS, WIDTH    rows and columns of a tile, and how many of the columns the tensor has
    count                   number of rows or tokens: one past the last index
    in_block_mask_qk        in_block_mask, for each score
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


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
def load_pairs(ptr, down, down_stride, down_count, across, across_stride, across_count):
    """Load the elements at all pairs of indices (down, across); 0 from down_count and across_count on.

    Their strides are down_stride and across_stride. A count is None if no index reaches it.
    """
    places = down.to(tl.int64)[:, None] * down_stride + across.to(tl.int64)[None, :] * across_stride
    if across_count is None:
        inside = (down < down_count)[:, None]
    elif down_count is None:
        inside = (across < across_count)[None, :]
    else:
        inside = (down < down_count)[:, None] & (across < across_count)[None, :]
    return tl.load(ptr + places, mask=inside, other=0)


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
def key_states(
    tile,
    q_first,
    q_last,
    k_len,
    q_begin,
    in_block_mask_base,
    in_block_mask_stride_query,
    in_block_mask_stride_key,
    BLOCK_N: tl.constexpr,
):
    """For each `tile` of keys, whether a tile of queries needs some of it, and all of it."""
    k_first = tile * BLOCK_N
    k_last = tl.minimum(k_first + BLOCK_N, k_len) - 1
    in_block_mask_qk_least, in_block_mask_qk_most = block_extremes(
        in_block_mask_base,
        q_first - q_begin,
        q_last - q_begin,
        64,
        2,
        in_block_mask_stride_query,
        k_first,
        k_last,
        64,
        2,
        in_block_mask_stride_key,
        BLOCK_N,
    )
    some = k_first <= k_last
    every = k_first + BLOCK_N <= k_len
    some &= in_block_mask_qk_most != 0  # block_sparse
    every &= in_block_mask_qk_least != 0  # block_sparse
    return some, some & every


@triton.jit
def query_states(
    tile,
    k_first,
    k_last,
    q_len,
    q_begin,
    in_block_mask_base,
    in_block_mask_stride_query,
    in_block_mask_stride_key,
    BLOCK_M: tl.constexpr,
):
    """For each `tile` of queries, whether a tile of keys needs some of it, and all of it."""
    q_first = tile * BLOCK_M + q_begin
    q_last = tl.minimum(q_first + BLOCK_M, q_len + q_begin) - 1
    in_block_mask_qk_least, in_block_mask_qk_most = block_extremes(
        in_block_mask_base,
        k_first,
        k_last,
        64,
        2,
        in_block_mask_stride_key,
        q_first - q_begin,
        q_last - q_begin,
        64,
        2,
        in_block_mask_stride_query,
        BLOCK_M,
    )
    some = q_first <= q_last
    every = q_first + BLOCK_M <= q_len + q_begin
    some &= in_block_mask_qk_most != 0  # block_sparse
    every &= in_block_mask_qk_least != 0  # block_sparse
    return some, some & every


@triton.jit
def block_extremes(
    base, first, last, PER: tl.constexpr, AT_ONCE: tl.constexpr, stride,
    other_first, other_last, OTHER_PER: tl.constexpr, OTHER_AT_ONCE: tl.constexpr, other_stride, BLOCK: tl.constexpr
):  # fmt: skip
    """Minimum and maximum entry of the blocks that a tile of one side shares with tiles of the other side.

    The tile extends from `first` to `last`, and PER of its rows share an entry; the other tiles, of BLOCK rows each,
    extend from other_first to other_last, and OTHER_PER rows share one. Entries begin at `base`, `stride` and
    `other_stride` apart; AT_ONCE of the tile and OTHER_AT_ONCE of each other tile are loaded together.
    """
    least = tl.full(other_first.shape, 2**31 - 1, tl.int32)
    most = tl.full(other_first.shape, -(2**31), tl.int32)
    for i in tl.range(first // PER, last // PER + 1, AT_ONCE):
        entry = (i + tl.arange(0, AT_ONCE))[:, None, None]
        for j in tl.range(0, 1 if OTHER_PER % BLOCK == 0 else (BLOCK - 1) // OTHER_PER + 2, OTHER_AT_ONCE):
            place = (other_first // OTHER_PER)[None, None, :] + (j + tl.arange(0, OTHER_AT_ONCE))[None, :, None]
            inside = (entry <= last // PER) & (place <= (other_last // OTHER_PER)[None, None, :])
            x = tl.load(base + entry.to(tl.int64) * stride + place.to(tl.int64) * other_stride, mask=inside, other=0)
            least = tl.minimum(least, tl.min(tl.min(tl.where(inside, x.to(tl.int32), 2**31 - 1), 0), 0))
            most = tl.maximum(most, tl.max(tl.max(tl.where(inside, x.to(tl.int32), -(2**31)), 0), 0))
    there = other_first <= other_last
    return tl.where(there, least, 0), tl.where(there, most, 0)


@triton.jit
def tile_list(lists_ptr, place, tile, tiles, others):
    """The list for `tile`, one of `tiles` tiles of an entry or head, `place`, among those at `lists_ptr`.

    A list has two numbers, then room for `others` tiles: those that need no mask come first. The first number says how
    many these are, the second one how many are listed.
    """
    return lists_ptr + tl.cast(place * tiles + tile, tl.int64) * (others + 2)


@triton.jit
def append(list_ptr, count, tiles, wanted):
    """Append the `wanted` ones of some tiles to a list of `count` tiles; returns how many it has then."""
    place = count + tl.cumsum(wanted.to(tl.int32), 0) - 1
    tl.store(list_ptr + 2 + place, tiles, mask=wanted)
    return count + tl.sum(wanted.to(tl.int32))


@triton.jit
def list_range(list_ptr):
    """Range [first, last) of the places in a list; tiles at [full_first, full_last) need no mask."""
    return 0, 0, tl.load(list_ptr), tl.load(list_ptr + 1)


@triton.jit
def listed(list_ptr, place):
    """The tile at a place in a list."""
    return tl.load(list_ptr + 2 + place)


@triton.jit(do_not_specialize=["q_tiles", "k_tiles", "q_total", "k_total", "Hq"])
def list_keys(
    key_lists_ptr, entries_ptr, in_block_mask_ptr, q_tiles, k_tiles, q_total, k_total, Hq,
    in_block_mask_stride_batch, in_block_mask_stride_head, in_block_mask_stride_query, in_block_mask_stride_key,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """List the tiles of keys that a tile of queries needs: first those that need no mask."""
    tile = tl.program_id(0) % q_tiles
    b, h = tl.program_id(0) // q_tiles // Hq, tl.program_id(0) // q_tiles % Hq
    q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
    q_begin = k_len - q_len if entries_ptr is None else tl.load(entries_ptr + 5 * b + 4)
    q_first = tile * BLOCK_M + q_begin
    q_last = tl.minimum(q_first + BLOCK_M, q_len + q_begin) - 1
    in_block_mask_base = (
        in_block_mask_ptr
        + tl.cast(b, tl.int64) * in_block_mask_stride_batch
        + tl.cast(h, tl.int64) * in_block_mask_stride_head
    )
    key_list = tile_list(key_lists_ptr, b * Hq + h, tile, q_tiles, k_tiles)
    full = 0
    for start in tl.range(0, k_tiles, 128):
        others = start + tl.arange(0, 128)
        some, every = key_states(
            others,
            q_first,
            q_last,
            k_len,
            q_begin,
            in_block_mask_base,
            in_block_mask_stride_query,
            in_block_mask_stride_key,
            BLOCK_N,
        )
        full = append(key_list, full, others, every)
    count = full
    for start in tl.range(0, k_tiles, 128):
        others = start + tl.arange(0, 128)
        some, every = key_states(
            others,
            q_first,
            q_last,
            k_len,
            q_begin,
            in_block_mask_base,
            in_block_mask_stride_query,
            in_block_mask_stride_key,
            BLOCK_N,
        )
        count = append(key_list, count, others, some & ~every)
    tl.store(key_list, full)
    tl.store(key_list + 1, count)


@triton.jit(do_not_specialize=["q_tiles", "k_tiles", "q_total", "k_total", "Hq"])
def list_queries(
    query_lists_ptr, entries_ptr, in_block_mask_ptr, q_tiles, k_tiles, q_total, k_total, Hq,
    in_block_mask_stride_batch, in_block_mask_stride_head, in_block_mask_stride_query, in_block_mask_stride_key,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """List the tiles of queries that a tile of keys needs: first those that need no mask."""
    tile = tl.program_id(0) % k_tiles
    b, h = tl.program_id(0) // k_tiles // Hq, tl.program_id(0) // k_tiles % Hq
    q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
    q_begin = k_len - q_len if entries_ptr is None else tl.load(entries_ptr + 5 * b + 4)
    k_first = tile * BLOCK_N
    k_last = tl.minimum(k_first + BLOCK_N, k_len) - 1
    in_block_mask_base = (
        in_block_mask_ptr
        + tl.cast(b, tl.int64) * in_block_mask_stride_batch
        + tl.cast(h, tl.int64) * in_block_mask_stride_head
    )
    query_list = tile_list(query_lists_ptr, b * Hq + h, tile, k_tiles, q_tiles)
    full = 0
    for start in tl.range(0, q_tiles, 128):
        others = start + tl.arange(0, 128)
        some, every = query_states(
            others,
            k_first,
            k_last,
            q_len,
            q_begin,
            in_block_mask_base,
            in_block_mask_stride_query,
            in_block_mask_stride_key,
            BLOCK_M,
        )
        full = append(query_list, full, others, every)
    count = full
    for start in tl.range(0, q_tiles, 128):
        others = start + tl.arange(0, 128)
        some, every = query_states(
            others,
            k_first,
            k_last,
            q_len,
            q_begin,
            in_block_mask_base,
            in_block_mask_stride_query,
            in_block_mask_stride_key,
            BLOCK_M,
        )
        count = append(query_list, count, others, some & ~every)
    tl.store(query_list, full)
    tl.store(query_list + 1, count)


@triton.jit
def attend(
    acc, m, l, q_tile, k_start, keys, terms, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr, mixed
):  # fmt: skip
    """Update the running softmax (acc, m, l) with one tile of keys."""
    k_desc, v_desc, b, k_offset, kv_h, k_len = keys
    (
        scale_log2, row, q_len, in_block_mask_base, in_block_mask_stride_query, in_block_mask_stride_key
    ) = terms  # fmt: skip
    # [BLOCK_N]
    k_pos = k_start + tl.arange(0, BLOCK_N)
    # [BLOCK_N, BLOCK_D]
    k_tile = load_tile(k_desc, b, kv_h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_D)
    score = tl.dot(q_tile, k_tile.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    # [BLOCK_N, BLOCK_DV]
    v_tile = load_tile(v_desc, b, kv_h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_DV)
    if mixed:
        # [BLOCK_M, BLOCK_N]
        in_block_mask_qk = load_pairs(
            in_block_mask_base,
            row // 64,
            in_block_mask_stride_query,
            tl.cdiv(q_len, 64),
            k_pos // 64,
            in_block_mask_stride_key,
            tl.cdiv(k_len, 64),
        ).to(tl.int1)
        keep = (k_pos < k_len)[None, :]
        keep &= in_block_mask_qk  # block_sparse
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


@triton.jit(do_not_specialize=["q_total", "k_total", "Hq", "q_tiles", "k_tiles"])
def forward(
    q_desc, k_desc, v_desc, out_ptr, lse_ptr, entries_ptr, scale, in_block_mask_ptr, key_lists_ptr, q_total,
    k_total, Hq, in_block_mask_stride_batch, in_block_mask_stride_head, in_block_mask_stride_query,
    in_block_mask_stride_key, q_tiles, k_tiles, GROUP: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr,
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
    # [BLOCK_M]
    row = q_start + tl.arange(0, BLOCK_M)
    scale_log2 = scale * LOG2E
    in_block_mask_base = (
        in_block_mask_ptr
        + tl.cast(b, tl.int64) * in_block_mask_stride_batch
        + tl.cast(h, tl.int64) * in_block_mask_stride_head
    )

    # [BLOCK_M, BLOCK_D]
    q_tile = load_tile(q_desc, b, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_D)
    # [BLOCK_M, BLOCK_DV]
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    # [BLOCK_M]
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    # [BLOCK_M, 8]
    l = tl.full([BLOCK_M, 8], 0.0, tl.float32)
    keys = (k_desc, v_desc, b, k_offset, kv_h, k_len)
    terms = (
        scale_log2, row, q_len, in_block_mask_base, in_block_mask_stride_query, in_block_mask_stride_key
    )  # fmt: skip
    key_list = tile_list(key_lists_ptr, b * Hq + h, q_start // BLOCK_M, q_tiles, k_tiles)
    _, full_first, full_last, last = list_range(key_list)
    for i in tl.range(0, last - full_last):
        k_start = listed(key_list, last - 1 - i) * BLOCK_N
        acc, m, l = attend(
            acc, m, l, q_tile, k_start, keys, terms, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION, mixed=True
        )  # fmt: skip
    for i in tl.range(0, full_last - full_first):
        k_start = listed(key_list, full_last - 1 - i) * BLOCK_N
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
    (
        scale_log2, k_pos, k_len, in_block_mask_base, in_block_mask_stride_query, in_block_mask_stride_key
    ) = terms  # fmt: skip
    # [BLOCK_M]
    row = q_start + tl.arange(0, BLOCK_M)
    # [BLOCK_M, BLOCK_D]
    q_tile = load_tile(q_desc, b, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_D)
    # [BLOCK_M, BLOCK_DV]
    dout_tile = load_tile(dout_desc, b, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_DV)
    score = tl.dot(k_tile, q_tile.T, input_precision=PRECISION)  # [BLOCK_N, BLOCK_M]
    # [BLOCK_M]
    lse = load_rows(lse_desc, row_base, q_start, row, 1, q_len)
    delta = load_rows(delta_desc, row_base, q_start, row, 1, q_len)
    dp = tl.dot(v_tile, dout_tile.T, input_precision=PRECISION)  # [BLOCK_N, BLOCK_M]
    p = tl.exp2(score * scale_log2 - lse[None, :])  # [BLOCK_N, BLOCK_M]
    if mixed:
        delta = tl.where(row < q_len, delta, 0.0)
        # [BLOCK_N, BLOCK_M]
        in_block_mask_qk = load_pairs(
            in_block_mask_base,
            k_pos // 64,
            in_block_mask_stride_key,
            tl.cdiv(k_len, 64),
            row // 64,
            in_block_mask_stride_query,
            tl.cdiv(q_len, 64),
        ).to(tl.int1)
        keep = (row < q_len)[None, :]
        keep &= in_block_mask_qk  # block_sparse
        p = tl.where(keep, p, 0.0)
    if MAKES != "dk":
        dv = add_product(dv, p.to(dout_tile.dtype), dout_tile, PRECISION)  # [BLOCK_N, BLOCK_DV]
    ds = p * (dp - delta[None, :])  # [BLOCK_N, BLOCK_M]
    if MAKES != "dv":
        dk = add_product(dk, ds.to(q_tile.dtype), q_tile, PRECISION)  # [BLOCK_N, BLOCK_D]
    return dk, dv


@triton.jit(do_not_specialize=["q_total", "k_total", "Hq", "q_tiles", "k_tiles"])
def backward_dkv(
    q_desc, k_desc, v_desc, dout_desc, lse_desc, delta_desc, dk_ptr, dv_ptr, entries_ptr, scale,
    in_block_mask_ptr, query_lists_ptr, q_total, k_total, Hq, in_block_mask_stride_batch,
    in_block_mask_stride_head, in_block_mask_stride_query, in_block_mask_stride_key, q_tiles, k_tiles,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, TILE_AXIS: tl.constexpr,
    MAKES: tl.constexpr
):  # fmt: skip
    """Store dK and dV of one tile of keys of one head, summed over the query heads that read it."""
    tile = tl.program_id(TILE_AXIS)
    Hkv = Hq // GROUP
    b, kv_h = batch_and_head(Hkv, TILE_AXIS)
    k_start = tile * BLOCK_N
    q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
    if entries_ptr is not None:
        if k_start >= k_len:
            return
    # [BLOCK_N]
    k_pos = k_start + tl.arange(0, BLOCK_N)
    scale_log2 = scale * LOG2E

    # [BLOCK_N, BLOCK_D]
    k_tile = load_tile(k_desc, b, kv_h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_D)
    # [BLOCK_N, BLOCK_DV]
    v_tile = load_tile(v_desc, b, kv_h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_DV)
    # [BLOCK_N, BLOCK_D]
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    # [BLOCK_N, BLOCK_DV]
    dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    for h in tl.range(kv_h * GROUP, (kv_h + 1) * GROUP):
        row_base = (b.to(tl.int64) * Hq + h) * q_total + q_offset
        in_block_mask_base = (
            in_block_mask_ptr
            + tl.cast(b, tl.int64) * in_block_mask_stride_batch
            + tl.cast(h, tl.int64) * in_block_mask_stride_head
        )
        queries = (q_desc, dout_desc, lse_desc, delta_desc, row_base, b, q_offset, h, q_len)
        terms = (
            scale_log2, k_pos, k_len, in_block_mask_base, in_block_mask_stride_query, in_block_mask_stride_key
        )  # fmt: skip
        query_list = tile_list(query_lists_ptr, b * Hq + h, k_start // BLOCK_N, k_tiles, q_tiles)
        _, full_first, full_last, last = list_range(query_list)
        for i in tl.range(full_last, last):
            q_start = listed(query_list, i) * BLOCK_M
            dk, dv = accumulate_dkdv(
                dk, dv, k_tile, v_tile, q_start, queries, terms, BLOCK_M, BLOCK_D, BLOCK_DV, PRECISION, MAKES,
                mixed=True
            )  # fmt: skip
        for i in tl.range(full_first, full_last):
            q_start = listed(query_list, i) * BLOCK_M
            dk, dv = accumulate_dkdv(
                dk, dv, k_tile, v_tile, q_start, queries, terms, BLOCK_M, BLOCK_D, BLOCK_DV, PRECISION, MAKES,
                mixed=False
            )  # fmt: skip

    first_row = (b.to(tl.int64) * k_total + k_offset) * Hkv + kv_h
    if MAKES != "dv":
        store_rows(dk_ptr + first_row * D, Hkv * D, dk * scale, k_start, k_len, D)
    if MAKES != "dk":
        store_rows(dv_ptr + first_row * DV, Hkv * DV, dv, k_start, k_len, DV)


@triton.jit
def accumulate_dq(
    dq, q_tile, dout_tile, lse, delta, k_start, keys, terms, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, mixed
):  # fmt: skip
    """Accumulate dQ of a tile of queries over one tile of keys."""
    k_desc, v_desc, b, k_offset, kv_h, k_len = keys
    (
        scale_log2, row, q_len, in_block_mask_base, in_block_mask_stride_query, in_block_mask_stride_key
    ) = terms  # fmt: skip
    # [BLOCK_N]
    k_pos = k_start + tl.arange(0, BLOCK_N)
    # [BLOCK_N, BLOCK_D]
    k_tile = load_tile(k_desc, b, kv_h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_D)
    # [BLOCK_N, BLOCK_DV]
    v_tile = load_tile(v_desc, b, kv_h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_DV)
    score = tl.dot(q_tile, k_tile.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    dp = tl.dot(dout_tile, v_tile.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    p = tl.exp2(score * scale_log2 - lse[:, None])  # [BLOCK_M, BLOCK_N]
    if mixed:
        # [BLOCK_M, BLOCK_N]
        in_block_mask_qk = load_pairs(
            in_block_mask_base,
            row // 64,
            in_block_mask_stride_query,
            tl.cdiv(q_len, 64),
            k_pos // 64,
            in_block_mask_stride_key,
            tl.cdiv(k_len, 64),
        ).to(tl.int1)
        keep = (k_pos < k_len)[None, :]
        keep &= in_block_mask_qk  # block_sparse
        p = tl.where(keep, p, 0.0)
    ds = p * (dp - delta[:, None])  # [BLOCK_M, BLOCK_N]
    dq = add_product(dq, ds.to(k_tile.dtype), k_tile, PRECISION)  # [BLOCK_M, BLOCK_D]
    return dq


@triton.jit(do_not_specialize=["q_total", "k_total", "Hq", "q_tiles", "k_tiles"])
def backward_dq(
    q_desc, k_desc, v_desc, out_desc, dout_desc, dq_ptr, lse_ptr, dlse_ptr, delta_ptr, entries_ptr, scale,
    in_block_mask_ptr, key_lists_ptr, q_total, k_total, Hq, in_block_mask_stride_batch, in_block_mask_stride_head,
    in_block_mask_stride_query, in_block_mask_stride_key, q_tiles, k_tiles, GROUP: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr, TILE_AXIS: tl.constexpr
):  # fmt: skip
    """Store dQ and delta, rowsum(out * dout) - dlse, of one tile of queries of one head."""
    # late rows tend to see more keys, so they start first
    tile = tl.num_programs(TILE_AXIS) - 1 - tl.program_id(TILE_AXIS)
    b, h = batch_and_head(Hq, TILE_AXIS)
    kv_h = h // GROUP
    q_start = tile * BLOCK_M
    q_offset, q_len, k_offset, k_len = find_entry(entries_ptr, b, q_total, k_total)
    if entries_ptr is not None:
        if q_start >= q_len:
            return
    # [BLOCK_M]
    row = q_start + tl.arange(0, BLOCK_M)
    scale_log2 = scale * LOG2E
    in_block_mask_base = (
        in_block_mask_ptr
        + tl.cast(b, tl.int64) * in_block_mask_stride_batch
        + tl.cast(h, tl.int64) * in_block_mask_stride_head
    )

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
    keys = (k_desc, v_desc, b, k_offset, kv_h, k_len)
    terms = (
        scale_log2, row, q_len, in_block_mask_base, in_block_mask_stride_query, in_block_mask_stride_key
    )  # fmt: skip
    key_list = tile_list(key_lists_ptr, b * Hq + h, q_start // BLOCK_M, q_tiles, k_tiles)
    _, full_first, full_last, last = list_range(key_list)
    for i in tl.range(full_last, last):
        k_start = listed(key_list, i) * BLOCK_N
        dq = accumulate_dq(
            dq, q_tile, dout_tile, lse, delta, k_start, keys, terms, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION,
            mixed=True
        )  # fmt: skip
    for i in tl.range(full_first, full_last):
        k_start = listed(key_list, i) * BLOCK_N
        dq = accumulate_dq(
            dq, q_tile, dout_tile, lse, delta, k_start, keys, terms, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION,
            mixed=False
        )  # fmt: skip

    first_row = (b.to(tl.int64) * q_total + q_offset) * Hq + h
    store_rows(dq_ptr + first_row * D, Hq * D, dq * scale, q_start, q_len, D)
