# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_log_decay.yaml
#   content hash  dd29172453a945ac
#   text hash     77b62d25845629ab
#   render with   attnforge render specs/packed_log_decay.yaml
"""Causal attention that forgets by a learned decay, for sequences packed into one tensor.

Formula, in natural-log units; q and k are positions, in `q . k` the rows there
    score = scale * (q . k)
    score = score + (in_log_decay[q] - in_log_decay[k])   # log_decay
    visible if k <= q                                     # causal
    lse = logsumexp of score over the visible keys
    out = sum of exp(score - lse) * v

    Kernels read the cumulative sum of in_log_decay over the tokens of a sequence, which `scan` computes. A value of
    -4096.0 or less begins a document: it adds nothing to the sum, and queries see only keys of their own document. A
    sum is stored as a float32 and the remainder that rounding left. Kernels subtract in_log_decay_anchor, the sum at
    the first token of the program's own tile, so that late sums are as exact as early ones.

    Scores fall with the distance, so the weights of keys that are far enough back are 0 in float32: `norms` and
    `shorten` find out where in long sequences, and no tile of such keys is visited.

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
    d score / d in_log_decay[q] = 1.0             # log_decay
    d score / d in_log_decay[k] = -1.0            # log_decay
    in_log_decay_q_sum = sum of ds * (d score / d in_log_decay[q]) over the keys   # backward_dq
    in_log_decay_k_sum = sum of ds * (d score / d in_log_decay[k]) over the queries   # backward_dkv
    din_log_decay[t] = 0 if t begins a document, else sum of in_log_decay_q_sum + in_log_decay_k_sum
        from t to the end of the sequence         # scan_back
    dq = scale * sum of ds * k over the keys      # backward_dq
    dk = scale * sum of ds * q over the queries   # backward_dkv, over the query heads of a key head
    dv = sum of p * dout over the queries         # backward_dkv, over the query heads of a key head
    The sum over later tokens need not stop at the end of a document: its terms add up to 0 over each document, up to
    rounding, as no query sees a key of another one.

Programs
    scan           one head of a sequence, BLOCK tokens at a time; runs before `forward`
    norms          PART rows of one head of q or k
    shorten        PART tokens of one head of a sequence; runs after `scan` and `norms`, before `forward`
    forward        a tile of BLOCK_M queries of one query head of a sequence; loops over tiles of BLOCK_N keys
    backward_dq    the same; runs before the other backward kernels, for which it stores delta
    backward_dkv   a tile of BLOCK_N keys of one key head of a sequence; loops over tiles of BLOCK_M queries of each of
                   the GROUP query heads that read it
    scan_back      as `scan`, from the last token to the first; runs after the other backward kernels
    The grid of `forward`, `backward_dq` and `backward_dkv` is (heads of a group, tiles, groups) or, from 65536 tiles
    on, (tiles, heads of a group, groups); TILE_AXIS, 1 or 0, is the axis of the tiles. Heads are numbered across all
    sequences; a group has as many as keep the rows that their programs loop over within a third of the L2 cache.
    Grids of one axis: `scan`, `norms`, `shorten`, `scan_back`.

Tensors, by their axes
    q, dq           [q_total, Hq, D]
    out, dout       [q_total, Hq, DV]
    k, dk           [k_total, Hkv, D]
    v, dv           [k_total, Hkv, DV]
    lse, delta      [Hq, q_rows], float32, the LSE in log2 units
    dlse            [Hq, q_rows], float32: the gradient of lse as stored, or None
    cu_seqlens_q, cu_seqlens_k, cu_seqlens
                    [sequences + 1], int32: where each sequence's rows begin, then where the last ones end; in `scan`,
                    of keys
    in_log_decay    [token, head], float; kernels read its sums, stored as 4 consecutive parts: sum, remainder, the
                    first position of the token's document and one past its last, as bits of int32
    x_desc          for q, k, v, out, dout: loads tiles of x at [h, row, column]; a TMA descriptor, or a tuple of
                    pointer, width, strides
                    for others: loads the values of consecutive rows; a descriptor of one axis, or a pointer
    x_ptr, x_base   pointers to the first value of x, and to the first one of the program's own values
    x_stride_a      stride of x along axis a; 0 if one value stands for all

Packing
    A TMA load may return rows of the next sequence. Steps with `tail` zero those that a product sums over (0 * NaN is
    NaN), and `keep` hides their scores; the program's own rows never mix, and none past the end is stored. Vectors that
    the package allocates, such as the LSE, hold a sequence's values from (offset // 4 + b) * 4 on, a 16-byte boundary.
    Rows of no sequence or past max_seqlen are 0 in out, dq, dk, dv; their LSE for users is -inf.

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
    b                         sequence
    Hq, h                     number of query heads, and the index of one
    Hkv                       number of key heads
    kv_h, GROUP               the key head that query head h reads, h // GROUP, and the number of query heads that share
                              it
    q_len, k_len              number of queries and of keys of a sequence
    D                         head size of q and k
    DV                        head size of v and out
    scale                     factor of q . k
    LOG2E                     log2(e): converts natural-log units to log2 units
    MAKES                     the gradient that a launch computes, dk or dv, if heads are wider than 256; None: both
    q_start, k_start          first row of a tile of queries, first key of a tile of keys, within the sequence
    row                       rows of a tile's queries, counted from the sequence's first one
    q_begin                   the position of row 0: k_len - q_len, which aligns the last query with the last key
    q_pos                     positions of a tile's queries, row + q_begin
    k_pos                     positions of a tile's keys
    q_first                   first position of a tile of queries
    q_last                    last position of a tile of queries, below k_len
    k_first                   first position of a tile of keys
    k_last                    last position of a tile of keys, below k_len
    first, last               range [first, last) of the tiles with something visible to the program's own tile
    full_first, full_last     range of the tiles that are fully visible to it: no step there needs the mask
    mixed                     whether a step applies the mask
    tail                      whether a step's tile may extend into the next sequence
    inner                     end of the tiles that lie within the sequence
    TILE_AXIS                 the grid axis along which programs own tiles
    m, l, acc                 running maximum (in log2 units), denominator and numerator of the softmax
    p                         weights; in `forward`, before the division by l
    pivot                     the value that a step subtracts from scores
    shrink                    the factor of earlier sums as m grows
    dp, ds                    gradients of the weights and of the score
    delta                     rowsum(out * dout) - dlse, which the gradient of the softmax subtracts from each dp of a
                              row
    q_offset, k_offset        first row of a sequence in the tensors
    q_end, k_end              one past the last row of a sequence
    q_total, k_total          rows of the tensors
    max_seqlen_q, max_seqlen_k
                              maximum rows per sequence, from the call; rows past it are ignored
    sequences                 number of sequences of the call
    q_rows, k_rows            values per head in vectors that the package allocates, such as lse
    q_aligned, k_aligned      where a sequence begins in them: at a multiple of 4, so that descriptors can read it
    row_base                  offset of the program's sequence and head in lse and delta
    first_row                 first row of the program's sequence and head in out, dq, dk or dv, as rows of one head
                              each
    keys, queries, terms      tuples of the values that a kernel passes to every step and that no step changes
    PRECISION                 how float32 is multiplied: ieee, or tf32 if PyTorch uses it; no effect on 16-bit types
    BLOCK                     rows of a tile, in functions used for both queries and keys; tokens per iteration of
                              `scan`
    ROWS, COLUMNS, WIDTH      rows and columns of a tile, and how many of the columns the tensor has
    count                     number of rows or tokens: one past the last index
    PART                      rows of which the largest norm is stored, and tokens whose documents are shortened alike
    parts, own_parts          number of such groups in a tensor of rows, and in the longest sequence
    norms_ptr                 the largest squared norms, by head: those of q, then those of k
    far                       how much scores have to fall between a query and a key for the key's weight to be 0
    sums_ptr, heads           the sums that `scan` stores, in four parts, and the number of heads that have some
    in_log_decay_anchor       the sum that a program subtracts from each sum of in_log_decay it reads
    in_log_decay_at_begin_q   where the document of each query begins, according to in_log_decay
    in_log_decay_q            sum of in_log_decay up to [q], minus in_log_decay_anchor
    in_log_decay_k            sum of in_log_decay up to [k], minus in_log_decay_anchor
    in_log_decay_at_end_k     where the document of each key ends, according to in_log_decay
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
# a weight is 0 in float32 if its score lies so far below that of another key; 1 more, for rounding
VANISHED = tl.constexpr(105)


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
def keep_documents(
    ptr, part, stride, own_first, own_last, shift, first, full_first, full_last, last, BLOCK: tl.constexpr
):
    """Narrow a range of tiles to the documents of a tile's own tokens, own_first to own_last.

    Tiles that lie in the documents of all own tokens need no mask. The bounds of a token's document are stored two and
    three parts of `part` values after its sum; row 0 of the tiles has the position `shift`.
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
def find_rows(cu_seqlens_ptr, b, total):
    """First row of sequence b in cu_seqlens, and one past its last; clamped to [0, total], and never decreasing."""
    first = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + b), 0), total)
    return first, tl.maximum(tl.minimum(tl.load(cu_seqlens_ptr + b + 1), total), first)


@triton.jit
def load_tile(desc, h, first, end, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Load rows [first, first + ROWS) of a head by a TMA descriptor, or by pointers, with 0 from row `end` on."""
    if isinstance(desc, tl.core.tensor_descriptor_base):
        tile = desc.load([h, first, 0]).reshape([ROWS, COLUMNS])
    else:
        # strides are in units of 16 bytes, so that the compiler can vectorise the loads
        ptr, WIDTH, stride_head, stride_row = desc
        STEP: tl.constexpr = 128 // ptr.dtype.element_ty.primitive_bitwidth
        row = first + tl.arange(0, ROWS)
        column = tl.arange(0, COLUMNS)
        ptr += tl.cast(h, tl.int64) * stride_head * STEP
        inside = (row < end)[:, None] & (column < WIDTH)[None, :]
        tile = tl.load(
            ptr + row.to(tl.int64)[:, None] * (tl.cast(stride_row, tl.int64) * STEP) + column[None, :],
            mask=inside,
            other=0.0,
        )
    return tile


@triton.jit
def clear_rows(
    ptr, stride, b, sequences, offset, length, end, total, tile, tiles, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr
):  # fmt: skip
    """Store zeros in rows that belong to no sequence; program `tile` of `tiles` clears a share of those next to b.

    The sequence has `length` of the `total` rows from `offset` on, and room up to row `end`.
    """
    zeros = tl.zeros([ROWS, COLUMNS], tl.float32)
    # a sequence longer than max_seqlen ends early; the last sequence clears all rows after it
    end = tl.where(b + 1 == sequences, total, end)
    for first in tl.range(offset + length + tile * ROWS, end, tiles * ROWS):
        store_rows(ptr, stride, zeros, first, end, WIDTH)
    # the first sequence clears the rows before it
    before = tl.where(b == 0, offset, 0)
    for first in tl.range(tile * ROWS, before, tiles * ROWS):
        store_rows(ptr, stride, zeros, first, before, WIDTH)


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
    """Sequence and head of this program; axis 2 of the grid counts groups of heads."""
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
    PRECISION: tl.constexpr, mixed, tail
):  # fmt: skip
    """Update the running softmax (acc, m, l) with one tile of keys."""
    k_desc, v_desc, k_offset, kv_h, k_len = keys
    (
        scale, q_pos, in_log_decay_base, in_log_decay_at_begin_q, in_log_decay_anchor, in_log_decay_q,
        in_log_decay_desc, in_log_decay_stride_token, in_log_decay_stride_part
    ) = terms  # fmt: skip
    # [BLOCK_N]
    k_pos = k_start + tl.arange(0, BLOCK_N)
    # [BLOCK_N, BLOCK_D]
    k_tile = load_tile(k_desc, kv_h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_D)
    score = tl.dot(q_tile, k_tile.T, input_precision=PRECISION) * scale  # [BLOCK_M, BLOCK_N]
    # [BLOCK_N]
    in_log_decay_k = (
        load_rows(in_log_decay_desc, in_log_decay_base, k_start, k_pos, in_log_decay_stride_token, k_len)
        - in_log_decay_anchor
        + load_rows(
            in_log_decay_desc,
            in_log_decay_base + in_log_decay_stride_part,
            k_start,
            k_pos,
            in_log_decay_stride_token,
            k_len,
        )
    )
    score = score + (in_log_decay_q[:, None] - in_log_decay_k[None, :])  # log_decay
    # [BLOCK_N, BLOCK_DV]
    v_tile = load_tile(v_desc, kv_h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_DV)
    if mixed:
        keep = k_pos[None, :] <= q_pos[:, None]  # causal
        keep &= in_log_decay_at_begin_q[:, None] <= k_pos[None, :]  # a document of log_decay
        score = tl.where(keep, score, float("-inf"))
    if tail:
        # zero the next sequence's values: 0 * NaN would be NaN
        v_tile = tl.where((k_pos < k_len)[:, None], v_tile, 0.0)
    # [BLOCK_M]
    m_new = tl.maximum(m, tl.max(score, 1) * LOG2E)
    # a row that has seen no key yet has m = -inf: subtract 0 instead, as -inf - -inf is NaN
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(score * LOG2E - pivot[:, None])  # [BLOCK_M, BLOCK_N]
    shrink = tl.exp2(m - pivot)  # [BLOCK_M]
    acc, l, m = acc * shrink[:, None], l * shrink[:, None], m_new
    acc = add_product(acc, p.to(v_tile.dtype), v_tile, PRECISION)  # [BLOCK_M, BLOCK_DV]
    return acc, m, l + partial_row_sums(p)


@triton.jit(do_not_specialize=["q_total", "max_seqlen_q", "k_total", "max_seqlen_k", "Hq", "sequences", "q_rows"])
def forward(
    q_desc, k_desc, v_desc, in_log_decay_desc, out_ptr, lse_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, scale,
    in_log_decay_ptr, q_total, max_seqlen_q, k_total, max_seqlen_k, Hq, sequences, q_rows,
    in_log_decay_stride_head, in_log_decay_stride_token, in_log_decay_stride_part, GROUP: tl.constexpr,
    DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr, TILE_AXIS: tl.constexpr
):  # fmt: skip
    """Store out and the LSE of one tile of queries of one head."""
    # late rows tend to see more keys, so they start first
    tile = tl.num_programs(TILE_AXIS) - 1 - tl.program_id(TILE_AXIS)
    b, h = batch_and_head(Hq, TILE_AXIS)
    kv_h = h // GROUP
    q_start = tile * BLOCK_M
    q_offset, q_end = find_rows(cu_seqlens_q_ptr, b, q_total)
    q_len = tl.minimum(q_end - q_offset, max_seqlen_q)
    q_aligned = (q_offset // 4 + b) * 4
    k_offset, k_end = find_rows(cu_seqlens_k_ptr, b, k_total)
    k_len = tl.minimum(k_end - k_offset, max_seqlen_k)
    k_aligned = (k_offset // 4 + b) * 4
    clear_rows(
        out_ptr + tl.cast(h, tl.int64) * DV, Hq * DV, b, sequences, q_offset, q_len, q_end, q_total, tile,
        tl.num_programs(TILE_AXIS), BLOCK_M, BLOCK_DV, DV
    )  # fmt: skip
    if q_start >= q_len:
        return
    q_begin = k_len - q_len
    q_first = q_start + q_begin
    q_last = tl.minimum(q_first + BLOCK_M, q_len + q_begin) - 1
    # [BLOCK_M]
    row = q_start + tl.arange(0, BLOCK_M)
    q_pos = row + q_begin
    in_log_decay_base = (
        tl.cast(h, tl.int64) * in_log_decay_stride_head + k_aligned.to(tl.int64) * in_log_decay_stride_token
    )
    # [BLOCK_M]
    in_log_decay_at_begin_q = load_vector(
        in_log_decay_ptr + in_log_decay_base + 2 * in_log_decay_stride_part, q_pos, in_log_decay_stride_token, k_len
    ).to(tl.int32, bitcast=True)
    in_log_decay_anchor = tl.load(
        in_log_decay_ptr + in_log_decay_base + tl.maximum(q_first, 0).to(tl.int64) * in_log_decay_stride_token
    )
    # [BLOCK_M]
    in_log_decay_q = (
        load_vector(in_log_decay_ptr + in_log_decay_base, q_pos, in_log_decay_stride_token, k_len)
        - in_log_decay_anchor
        + load_vector(
            in_log_decay_ptr + in_log_decay_base + in_log_decay_stride_part, q_pos, in_log_decay_stride_token, k_len
        )
    )

    # [BLOCK_M, BLOCK_D]
    q_tile = load_tile(q_desc, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_D)
    # [BLOCK_M, BLOCK_DV]
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    # [BLOCK_M]
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    # [BLOCK_M, 8]
    l = tl.full([BLOCK_M, 8], 0.0, tl.float32)
    keys = (k_desc, v_desc, k_offset, kv_h, k_len)
    terms = (
        scale, q_pos, in_log_decay_base, in_log_decay_at_begin_q, in_log_decay_anchor, in_log_decay_q,
        in_log_decay_desc, in_log_decay_stride_token, in_log_decay_stride_part
    )  # fmt: skip
    first, full_first, full_last, last = key_tiles(q_first, q_last, k_len, BLOCK_N)
    first, full_first, full_last, last = keep_documents(
        in_log_decay_ptr + in_log_decay_base, in_log_decay_stride_part, in_log_decay_stride_token, q_first,
        q_last, 0, first, full_first, full_last, last, BLOCK_N
    )  # fmt: skip
    if BLOCK_DV <= 128:
        # tiles before `inner` lie within the sequence
        inner = tl.minimum(tl.maximum(k_len // BLOCK_N, first), last)
        for i in tl.range(inner, last):
            k_start = i * BLOCK_N
            acc, m, l = attend(
                acc, m, l, q_tile, k_start, keys, terms, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION, mixed=True, tail=True
            )  # fmt: skip
        for j in tl.range(first, inner):
            i = first + inner - 1 - j  # descending from the diagonal
            k_start = i * BLOCK_N
            mixed = (i < full_first) | (i >= full_last)
            acc, m, l = attend(
                acc, m, l, q_tile, k_start, keys, terms, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION, mixed=mixed, tail=False
            )  # fmt: skip
    else:
        # a branch between products of this width costs more than separate loops for mixed tiles
        for i in tl.range(0, last - full_last):
            k_start = (last - 1 - i) * BLOCK_N
            acc, m, l = attend(
                acc, m, l, q_tile, k_start, keys, terms, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION, mixed=True, tail=True
            )  # fmt: skip
        for i in tl.range(0, full_last - full_first):
            k_start = (full_last - 1 - i) * BLOCK_N
            acc, m, l = attend(
                acc, m, l, q_tile, k_start, keys, terms, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION, mixed=False, tail=False
            )  # fmt: skip
        for i in tl.range(0, full_first - first):
            k_start = (full_first - 1 - i) * BLOCK_N
            acc, m, l = attend(
                acc, m, l, q_tile, k_start, keys, terms, BLOCK_N, BLOCK_D, BLOCK_DV, PRECISION, mixed=True, tail=True
            )  # fmt: skip

    l = tl.sum(l, 1)  # [BLOCK_M]
    # rows without keys: out is 0, the LSE makes every weight 0
    # [BLOCK_M, BLOCK_DV]
    out = acc / tl.where(l == 0, 1.0, l)[:, None]
    store_rows(out_ptr + (q_offset.to(tl.int64) * Hq + h) * DV, Hq * DV, out, q_start, q_len, DV)
    # [BLOCK_M]
    lse = tl.where(l == 0, float("inf"), m + tl.log2(l))
    tl.store(lse_ptr + tl.cast(h, tl.int64) * q_rows + q_aligned + row, lse, mask=row < q_len)


@triton.jit
def accumulate_dkdv(
    dk, dv, in_log_decay_k_sum, k_tile, v_tile, q_start, queries, terms, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, MAKES: tl.constexpr, mixed, tail
):  # fmt: skip
    """Accumulate dK and dV of a tile of keys over one tile of queries."""
    q_desc, dout_desc, lse_desc, delta_desc, row_base, q_offset, h, q_len = queries
    (
        q_begin, scale, k_pos, k_len, in_log_decay_base, in_log_decay_at_end_k, in_log_decay_anchor,
        in_log_decay_k, in_log_decay_desc, in_log_decay_stride_token, in_log_decay_stride_part,
        in_log_decay_k_sum_ptr
    ) = terms  # fmt: skip
    q_first = q_start + q_begin
    # [BLOCK_M]
    row = q_start + tl.arange(0, BLOCK_M)
    q_pos = row + q_begin
    # [BLOCK_M, BLOCK_D]
    q_tile = load_tile(q_desc, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_D)
    # [BLOCK_M, BLOCK_DV]
    dout_tile = load_tile(dout_desc, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_DV)
    if tail:
        # zero the next sequence's rows: 0 * NaN would be NaN
        q_tile = tl.where((row < q_len)[:, None], q_tile, 0.0)
        dout_tile = tl.where((row < q_len)[:, None], dout_tile, 0.0)
    score = tl.dot(k_tile, q_tile.T, input_precision=PRECISION) * scale  # [BLOCK_N, BLOCK_M]
    # [BLOCK_M]
    in_log_decay_q = (
        load_rows(in_log_decay_desc, in_log_decay_base, q_first, q_pos, in_log_decay_stride_token, k_len)
        - in_log_decay_anchor
        + load_rows(
            in_log_decay_desc,
            in_log_decay_base + in_log_decay_stride_part,
            q_first,
            q_pos,
            in_log_decay_stride_token,
            k_len,
        )
    )
    # log_decay
    score = score + (in_log_decay_q[None, :] - in_log_decay_k[:, None])
    # [BLOCK_M]
    lse = load_rows(lse_desc, row_base, q_start, row, 1, q_len)
    delta = load_rows(delta_desc, row_base, q_start, row, 1, q_len)
    dp = tl.dot(v_tile, dout_tile.T, input_precision=PRECISION)  # [BLOCK_N, BLOCK_M]
    p = tl.exp2(score * LOG2E - lse[None, :])  # [BLOCK_N, BLOCK_M]
    if mixed:
        delta = tl.where(row < q_len, delta, 0.0)
        keep = (row < q_len)[None, :]
        keep &= k_pos[:, None] <= q_pos[None, :]  # causal
        keep &= q_pos[None, :] < in_log_decay_at_end_k[:, None]  # a document of log_decay
        p = tl.where(keep, p, 0.0)
    if MAKES != "dk":
        dv = add_product(dv, p.to(dout_tile.dtype), dout_tile, PRECISION)  # [BLOCK_N, BLOCK_DV]
    ds = p * (dp - delta[None, :])  # [BLOCK_N, BLOCK_M]
    if in_log_decay_k_sum_ptr is not None:
        in_log_decay_k_sum -= tl.sum(ds, 1)
    if MAKES != "dv":
        dk = add_product(dk, ds.to(q_tile.dtype), q_tile, PRECISION)  # [BLOCK_N, BLOCK_D]
    return dk, dv, in_log_decay_k_sum


@triton.jit(
    do_not_specialize=["q_total", "max_seqlen_q", "k_total", "max_seqlen_k", "Hq", "sequences", "q_rows", "k_rows"]
)
def backward_dkv(
    q_desc, k_desc, v_desc, dout_desc, lse_desc, delta_desc, in_log_decay_desc, dk_ptr, dv_ptr, cu_seqlens_q_ptr,
    cu_seqlens_k_ptr, scale, in_log_decay_ptr, in_log_decay_k_sum_ptr, q_total, max_seqlen_q, k_total,
    max_seqlen_k, Hq, sequences, q_rows, k_rows, in_log_decay_stride_head, in_log_decay_stride_token,
    in_log_decay_stride_part, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr,
    TILE_AXIS: tl.constexpr, MAKES: tl.constexpr
):  # fmt: skip
    """Store dK and dV of one tile of keys of one head, summed over the query heads that read it."""
    tile = tl.program_id(TILE_AXIS)
    Hkv = Hq // GROUP
    b, kv_h = batch_and_head(Hkv, TILE_AXIS)
    k_start = tile * BLOCK_N
    q_offset, q_end = find_rows(cu_seqlens_q_ptr, b, q_total)
    q_len = tl.minimum(q_end - q_offset, max_seqlen_q)
    q_aligned = (q_offset // 4 + b) * 4
    k_offset, k_end = find_rows(cu_seqlens_k_ptr, b, k_total)
    k_len = tl.minimum(k_end - k_offset, max_seqlen_k)
    k_aligned = (k_offset // 4 + b) * 4
    clear_rows(
        dk_ptr + tl.cast(kv_h, tl.int64) * D, Hkv * D, b, sequences, k_offset, k_len, k_end, k_total, tile,
        tl.num_programs(TILE_AXIS), BLOCK_N, BLOCK_D, D
    )  # fmt: skip
    clear_rows(
        dv_ptr + tl.cast(kv_h, tl.int64) * DV, Hkv * DV, b, sequences, k_offset, k_len, k_end, k_total, tile,
        tl.num_programs(TILE_AXIS), BLOCK_N, BLOCK_DV, DV
    )  # fmt: skip
    if k_start >= k_len:
        return
    q_begin = k_len - q_len
    k_first = k_start
    k_last = tl.minimum(k_start + BLOCK_N, k_len) - 1
    # [BLOCK_N]
    k_pos = k_start + tl.arange(0, BLOCK_N)

    # [BLOCK_N, BLOCK_D]
    k_tile = load_tile(k_desc, kv_h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_D)
    # [BLOCK_N, BLOCK_DV]
    v_tile = load_tile(v_desc, kv_h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_DV)
    # [BLOCK_N, BLOCK_D]
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    # [BLOCK_N, BLOCK_DV]
    dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    for h in tl.range(kv_h * GROUP, (kv_h + 1) * GROUP):
        row_base = tl.cast(h, tl.int64) * q_rows + q_aligned
        in_log_decay_base = (
            tl.cast(h, tl.int64) * in_log_decay_stride_head + k_aligned.to(tl.int64) * in_log_decay_stride_token
        )
        # [BLOCK_N]
        in_log_decay_at_end_k = load_vector(
            in_log_decay_ptr + in_log_decay_base + 3 * in_log_decay_stride_part, k_pos, in_log_decay_stride_token, k_len
        ).to(tl.int32, bitcast=True)
        in_log_decay_anchor = tl.load(
            in_log_decay_ptr + in_log_decay_base + tl.maximum(k_first, 0).to(tl.int64) * in_log_decay_stride_token
        )
        # [BLOCK_N]
        in_log_decay_k = (
            load_vector(in_log_decay_ptr + in_log_decay_base, k_pos, in_log_decay_stride_token, k_len)
            - in_log_decay_anchor
            + load_vector(
                in_log_decay_ptr + in_log_decay_base + in_log_decay_stride_part, k_pos, in_log_decay_stride_token, k_len
            )
        )
        in_log_decay_k_sum = tl.zeros([BLOCK_N], tl.float32)
        queries = (q_desc, dout_desc, lse_desc, delta_desc, row_base, q_offset, h, q_len)
        terms = (
            q_begin, scale, k_pos, k_len, in_log_decay_base, in_log_decay_at_end_k, in_log_decay_anchor,
            in_log_decay_k, in_log_decay_desc, in_log_decay_stride_token, in_log_decay_stride_part,
            in_log_decay_k_sum_ptr
        )  # fmt: skip
        first, full_first, full_last, last = query_tiles(k_first, k_last, q_len, q_begin, BLOCK_M)
        first, full_first, full_last, last = keep_documents(
            in_log_decay_ptr + in_log_decay_base, in_log_decay_stride_part, in_log_decay_stride_token, k_first,
            k_last, q_begin, first, full_first, full_last, last, BLOCK_M
        )  # fmt: skip
        # tiles before `inner` lie within the sequence
        inner = tl.minimum(tl.maximum(q_len // BLOCK_M, first), last)
        for i in tl.range(first, inner):
            q_start = i * BLOCK_M
            mixed = (i < full_first) | (i >= full_last)
            dk, dv, in_log_decay_k_sum = accumulate_dkdv(
                dk, dv, in_log_decay_k_sum, k_tile, v_tile, q_start, queries, terms, BLOCK_M, BLOCK_D, BLOCK_DV,
                PRECISION, MAKES, mixed=mixed, tail=False
            )  # fmt: skip
        for i in tl.range(inner, last, num_stages=1):
            q_start = i * BLOCK_M
            dk, dv, in_log_decay_k_sum = accumulate_dkdv(
                dk, dv, in_log_decay_k_sum, k_tile, v_tile, q_start, queries, terms, BLOCK_M, BLOCK_D, BLOCK_DV,
                PRECISION, MAKES, mixed=True, tail=True
            )  # fmt: skip
        if in_log_decay_k_sum_ptr is not None:
            tl.store(
                in_log_decay_k_sum_ptr + tl.cast(h, tl.int64) * k_rows + k_aligned + k_pos,
                in_log_decay_k_sum,
                mask=k_pos < k_len,
            )

    first_row = k_offset.to(tl.int64) * Hkv + kv_h
    if MAKES != "dv":
        store_rows(dk_ptr + first_row * D, Hkv * D, dk * scale, k_start, k_len, D)
    if MAKES != "dk":
        store_rows(dv_ptr + first_row * DV, Hkv * DV, dv, k_start, k_len, DV)


@triton.jit
def accumulate_dq(
    dq, in_log_decay_q_sum, q_tile, dout_tile, lse, delta, k_start, keys, terms, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, mixed, tail
):  # fmt: skip
    """Accumulate dQ of a tile of queries over one tile of keys."""
    k_desc, v_desc, k_offset, kv_h, k_len = keys
    (
        scale, q_pos, in_log_decay_base, in_log_decay_at_begin_q, in_log_decay_anchor, in_log_decay_q,
        in_log_decay_desc, in_log_decay_stride_token, in_log_decay_stride_part, in_log_decay_q_sum_ptr
    ) = terms  # fmt: skip
    # [BLOCK_N]
    k_pos = k_start + tl.arange(0, BLOCK_N)
    # [BLOCK_N, BLOCK_D]
    k_tile = load_tile(k_desc, kv_h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_D)
    # [BLOCK_N, BLOCK_DV]
    v_tile = load_tile(v_desc, kv_h, k_offset + k_start, k_offset + k_len, BLOCK_N, BLOCK_DV)
    if tail:
        # zero the next sequence's rows: 0 * NaN would be NaN
        k_tile = tl.where((k_pos < k_len)[:, None], k_tile, 0.0)
        v_tile = tl.where((k_pos < k_len)[:, None], v_tile, 0.0)
    score = tl.dot(q_tile, k_tile.T, input_precision=PRECISION) * scale  # [BLOCK_M, BLOCK_N]
    # [BLOCK_N]
    in_log_decay_k = (
        load_rows(in_log_decay_desc, in_log_decay_base, k_start, k_pos, in_log_decay_stride_token, k_len)
        - in_log_decay_anchor
        + load_rows(
            in_log_decay_desc,
            in_log_decay_base + in_log_decay_stride_part,
            k_start,
            k_pos,
            in_log_decay_stride_token,
            k_len,
        )
    )
    # log_decay
    score = score + (in_log_decay_q[:, None] - in_log_decay_k[None, :])
    dp = tl.dot(dout_tile, v_tile.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    p = tl.exp2(score * LOG2E - lse[:, None])  # [BLOCK_M, BLOCK_N]
    if mixed:
        keep = k_pos[None, :] <= q_pos[:, None]  # causal
        keep &= in_log_decay_at_begin_q[:, None] <= k_pos[None, :]  # a document of log_decay
        p = tl.where(keep, p, 0.0)
    ds = p * (dp - delta[:, None])  # [BLOCK_M, BLOCK_N]
    if in_log_decay_q_sum_ptr is not None:
        in_log_decay_q_sum += tl.sum(ds, 1)
    dq = add_product(dq, ds.to(k_tile.dtype), k_tile, PRECISION)  # [BLOCK_M, BLOCK_D]
    return dq, in_log_decay_q_sum


@triton.jit(
    do_not_specialize=["q_total", "max_seqlen_q", "k_total", "max_seqlen_k", "Hq", "sequences", "q_rows", "k_rows"]
)
def backward_dq(
    q_desc, k_desc, v_desc, out_desc, dout_desc, in_log_decay_desc, dq_ptr, lse_ptr, dlse_ptr, delta_ptr,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, scale, in_log_decay_ptr, in_log_decay_q_sum_ptr, q_total, max_seqlen_q,
    k_total, max_seqlen_k, Hq, sequences, q_rows, k_rows, in_log_decay_stride_head, in_log_decay_stride_token,
    in_log_decay_stride_part, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr, TILE_AXIS: tl.constexpr
):  # fmt: skip
    """Store dQ and delta, rowsum(out * dout) - dlse, of one tile of queries of one head."""
    # late rows tend to see more keys, so they start first
    tile = tl.num_programs(TILE_AXIS) - 1 - tl.program_id(TILE_AXIS)
    b, h = batch_and_head(Hq, TILE_AXIS)
    kv_h = h // GROUP
    q_start = tile * BLOCK_M
    q_offset, q_end = find_rows(cu_seqlens_q_ptr, b, q_total)
    q_len = tl.minimum(q_end - q_offset, max_seqlen_q)
    q_aligned = (q_offset // 4 + b) * 4
    k_offset, k_end = find_rows(cu_seqlens_k_ptr, b, k_total)
    k_len = tl.minimum(k_end - k_offset, max_seqlen_k)
    k_aligned = (k_offset // 4 + b) * 4
    clear_rows(
        dq_ptr + tl.cast(h, tl.int64) * D, Hq * D, b, sequences, q_offset, q_len, q_end, q_total, tile,
        tl.num_programs(TILE_AXIS), BLOCK_M, BLOCK_D, D
    )  # fmt: skip
    if q_start >= q_len:
        return
    q_begin = k_len - q_len
    q_first = q_start + q_begin
    q_last = tl.minimum(q_first + BLOCK_M, q_len + q_begin) - 1
    # [BLOCK_M]
    row = q_start + tl.arange(0, BLOCK_M)
    q_pos = row + q_begin
    in_log_decay_base = (
        tl.cast(h, tl.int64) * in_log_decay_stride_head + k_aligned.to(tl.int64) * in_log_decay_stride_token
    )
    # [BLOCK_M]
    in_log_decay_at_begin_q = load_vector(
        in_log_decay_ptr + in_log_decay_base + 2 * in_log_decay_stride_part, q_pos, in_log_decay_stride_token, k_len
    ).to(tl.int32, bitcast=True)
    in_log_decay_anchor = tl.load(
        in_log_decay_ptr + in_log_decay_base + tl.maximum(q_first, 0).to(tl.int64) * in_log_decay_stride_token
    )
    # [BLOCK_M]
    in_log_decay_q = (
        load_vector(in_log_decay_ptr + in_log_decay_base, q_pos, in_log_decay_stride_token, k_len)
        - in_log_decay_anchor
        + load_vector(
            in_log_decay_ptr + in_log_decay_base + in_log_decay_stride_part, q_pos, in_log_decay_stride_token, k_len
        )
    )

    # [BLOCK_M, BLOCK_D]
    q_tile = load_tile(q_desc, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_D)
    # [BLOCK_M, BLOCK_DV]
    dout_tile = load_tile(dout_desc, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_DV)
    out_tile = load_tile(out_desc, h, q_offset + q_start, q_offset + q_len, BLOCK_M, BLOCK_DV)
    # [BLOCK_M]
    delta = tl.sum(out_tile.to(tl.float32) * dout_tile.to(tl.float32), 1)
    row_base = tl.cast(h, tl.int64) * q_rows + q_aligned
    if dlse_ptr is not None:
        # the derivative of the LSE with respect to a score is its weight, so that ds gains p * dlse
        delta -= tl.load(dlse_ptr + row_base + row, mask=row < q_len, other=0.0) * LOG2E
    # [BLOCK_M]
    lse = tl.load(lse_ptr + row_base + row, mask=row < q_len, other=0.0)
    tl.store(delta_ptr + row_base + row, delta, mask=row < q_len)
    # [BLOCK_M, BLOCK_D]
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # [BLOCK_M]
    in_log_decay_q_sum = tl.zeros([BLOCK_M], tl.float32)
    keys = (k_desc, v_desc, k_offset, kv_h, k_len)
    terms = (
        scale, q_pos, in_log_decay_base, in_log_decay_at_begin_q, in_log_decay_anchor, in_log_decay_q,
        in_log_decay_desc, in_log_decay_stride_token, in_log_decay_stride_part, in_log_decay_q_sum_ptr
    )  # fmt: skip
    first, full_first, full_last, last = key_tiles(q_first, q_last, k_len, BLOCK_N)
    first, full_first, full_last, last = keep_documents(
        in_log_decay_ptr + in_log_decay_base, in_log_decay_stride_part, in_log_decay_stride_token, q_first,
        q_last, 0, first, full_first, full_last, last, BLOCK_N
    )  # fmt: skip
    # tiles before `inner` lie within the sequence
    inner = tl.minimum(tl.maximum(k_len // BLOCK_N, first), last)
    for i in tl.range(inner, last):
        k_start = i * BLOCK_N
        dq, in_log_decay_q_sum = accumulate_dq(
            dq, in_log_decay_q_sum, q_tile, dout_tile, lse, delta, k_start, keys, terms, BLOCK_N, BLOCK_D,
            BLOCK_DV, PRECISION, mixed=True, tail=True
        )  # fmt: skip
    for i in tl.range(first, inner):
        k_start = i * BLOCK_N
        mixed = (i < full_first) | (i >= full_last)
        dq, in_log_decay_q_sum = accumulate_dq(
            dq, in_log_decay_q_sum, q_tile, dout_tile, lse, delta, k_start, keys, terms, BLOCK_N, BLOCK_D,
            BLOCK_DV, PRECISION, mixed=mixed, tail=False
        )  # fmt: skip

    first_row = q_offset.to(tl.int64) * Hq + h
    store_rows(dq_ptr + first_row * D, Hq * D, dq * scale, q_start, q_len, D)
    if in_log_decay_q_sum_ptr is not None:
        tl.store(
            in_log_decay_q_sum_ptr + tl.cast(h, tl.int64) * k_rows + k_aligned + q_pos,
            in_log_decay_q_sum,
            mask=(row < q_len) & (q_pos >= 0),
        )


@triton.jit
def later(a, b):
    """Maximum of two indices a and b, for use in a scan."""
    return tl.maximum(a, b)


@triton.jit
def last_of(x):
    """The last element of a vector."""
    return tl.sum(tl.where(tl.arange(0, x.shape[0]) == x.shape[0] - 1, x, 0))


@triton.jit(do_not_specialize=["k_total", "k_rows", "heads"])
def scan(
    x_ptr, sums_ptr, cu_seqlens_ptr, x_stride_head, x_stride_token, k_total, k_rows, heads, RESET: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    """Store the cumulative sums of x over the tokens of one of `heads` heads; values of RESET or less begin a document.

    Four consecutive parts are stored: the sums as float32, the remainders that rounding left, and for each token the
    first index of its document and one past its last, as the bits of int32.
    """
    b, h = tl.program_id(0) // heads, tl.program_id(0) % heads
    offset, past = find_rows(cu_seqlens_ptr, b, k_total)
    count = past - offset
    aligned = (offset // 4 + b) * 4
    x_ptr += h.to(tl.int64) * x_stride_head + offset.to(tl.int64) * x_stride_token
    sums_ptr += h.to(tl.int64) * 4 * k_rows + aligned
    carry, first = tl.full([], 0.0, tl.float64), 0
    for start in tl.range(0, count, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + token.to(tl.int64) * x_stride_token, mask=token < count, other=0.0).to(tl.float64)
        sums = carry + tl.cumsum(tl.where(x <= RESET, 0.0, x), 0)
        rounded = sums.to(tl.float32)
        tl.store(sums_ptr + token, rounded, mask=token < count)
        tl.store(sums_ptr + k_rows + token, (sums - rounded.to(tl.float64)).to(tl.float32), mask=token < count)
        begin = tl.maximum(tl.associative_scan(tl.where(x <= RESET, token, 0), 0, later), first)
        tl.store(sums_ptr + 2 * k_rows + token, begin.to(tl.float32, bitcast=True), mask=token < count)
        carry, first = last_of(sums), last_of(begin)
    # from the end back: the number of tokens from where the next document begins to the end
    behind = 0
    for start in tl.range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        token = count - 1 - place
        after = tl.load(x_ptr + (token.to(tl.int64) + 1) * x_stride_token, mask=(token >= 0) & (place > 0), other=0.0)
        found = tl.maximum(tl.associative_scan(tl.where(after <= RESET, place, 0), 0, later), behind)
        tl.store(sums_ptr + 3 * k_rows + token, (count - found).to(tl.float32, bitcast=True), mask=token >= 0)
        behind = last_of(found)


@triton.jit(do_not_specialize=["q_total", "k_total", "Hq", "parts"])
def norms(
    q_ptr, k_ptr, norms_ptr, q_stride_token, q_stride_head, k_stride_token, k_stride_head, q_total, k_total, Hq,
    parts, D: tl.constexpr, BLOCK_D: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Store the largest squared norm of PART rows of one head, of q first; 0 if all keys have weights anyway."""
    part, place = tl.program_id(0) % parts, tl.program_id(0) // parts
    own = place
    if own < Hq:
        ptr = q_ptr + own.to(tl.int64) * q_stride_head
        stride, rows = q_stride_token, q_total
    else:
        ptr = k_ptr + (own - Hq).to(tl.int64) * k_stride_head
        stride, rows = k_stride_token, k_total
    column = tl.arange(0, BLOCK_D)
    largest = tl.zeros([ROWS], tl.float32)
    for start in tl.range(part * PART, tl.minimum((part + 1) * PART, rows), ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < D)[None, :]
        x = tl.load(ptr + row.to(tl.int64)[:, None] * stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
        squares = tl.sum(x * x, 1)
        # NaN limits nothing
        largest = tl.maximum(largest, tl.where(squares == squares, squares, float("inf")))
    tl.store(norms_ptr + tl.program_id(0), tl.max(largest))


@triton.jit
def largest_norm(norms_ptr, first, past, begin, end, parts):
    """The largest norm of the rows in the parts [begin, end) of the heads [first, past), each of which has `parts`."""
    largest = tl.zeros([256], tl.float32)
    for head in tl.range(first, past):
        for start in tl.range(begin, end, 256):
            part = start + tl.arange(0, 256)
            found = tl.load(norms_ptr + tl.cast(head, tl.int64) * parts + part, mask=part < end, other=0.0)
            largest = tl.maximum(largest, found)
    return tl.sqrt(tl.max(largest))


@triton.jit
def least_fall(
    scale, norms_ptr, first, past, Hq, Hkv, q_offset, q_len, k_offset, k_len, parts, PART: tl.constexpr
):  # fmt: skip
    """How much scores of the heads [first, past) have to fall from a query to a key for the key's weight to be 0.

    A query's own key is visible to it, and no q . k is further from 0 than the product of the largest norms; as these are
    rounded, the result is a bit larger.
    """
    q_norm = largest_norm(norms_ptr, first, past, q_offset // PART, tl.cdiv(q_offset + q_len, PART), parts)
    first, past = Hq + first * Hkv // Hq, Hq + tl.cdiv(past * Hkv, Hq)
    k_norm = largest_norm(norms_ptr, first, past, k_offset // PART, tl.cdiv(k_offset + k_len, PART), parts)
    return VANISHED + 2.05 * tl.abs(scale) * q_norm * k_norm


@triton.jit(
    do_not_specialize=[
        "q_total",
        "max_seqlen_q",
        "k_total",
        "max_seqlen_k",
        "Hq",
        "Hkv",
        "heads",
        "k_rows",
        "parts",
        "own_parts",
    ]
)
def shorten(
    sums_ptr, norms_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, scale, q_total, max_seqlen_q, k_total, max_seqlen_k,
    Hq, Hkv, heads, k_rows, parts, own_parts, PART: tl.constexpr
):  # fmt: skip
    """Let the documents of PART tokens leave out all tokens that have no weight because they are too far away."""
    part, place = tl.program_id(0) % own_parts, tl.program_id(0) // own_parts
    b, h = place // heads, place % heads
    q_offset, q_end = find_rows(cu_seqlens_q_ptr, b, q_total)
    q_len = tl.minimum(q_end - q_offset, max_seqlen_q)
    k_offset, k_end = find_rows(cu_seqlens_k_ptr, b, k_total)
    k_len = tl.minimum(k_end - k_offset, max_seqlen_k)
    k_aligned = (k_offset // 4 + b) * 4
    sums_ptr += h.to(tl.int64) * 4 * k_rows + k_aligned
    start = part * PART
    # sums that fall by less in all leave no token without weight: see least_fall
    if (start >= k_len) | (tl.load(sums_ptr + tl.maximum(k_len, 1) - 1) > -VANISHED):
        return
    # of the heads that read these sums
    first, past = h * (Hq // heads), (h + 1) * (Hq // heads)
    far = least_fall(scale, norms_ptr, first, past, Hq, Hkv, q_offset, q_len, k_offset, k_len, parts, PART)
    far += 1e-6 * tl.abs(tl.load(sums_ptr + k_len - 1))  # sums are rounded
    highest = tl.load(sums_ptr + start)
    lowest = tl.load(sums_ptr + tl.minimum(start + PART, k_len) - 1)
    begin, end = 0, 0
    for other in tl.range(0, tl.cdiv(k_len, PART), 256):
        token = (other + tl.arange(0, 256)) * PART
        inside = token < k_len
        # sums fall from token to token: those of a part lie between that of its last token and that of its first one
        least = tl.load(sums_ptr + tl.minimum(token + PART, k_len) - 1)
        most = tl.load(sums_ptr + token, mask=inside, other=0.0)
        begin += tl.sum((inside & (least - highest >= far)).to(tl.int32))
        end += tl.sum((inside & ~(lowest - most >= far)).to(tl.int32))
    begin, end = begin * PART, end * PART
    if (begin > 0) | (end < k_len):
        tokens = start + tl.arange(0, PART)
        begins, ends, own = sums_ptr + 2 * k_rows + tokens, sums_ptr + 3 * k_rows + tokens, tokens < k_len
        from_begin = tl.maximum(tl.load(begins, mask=own, other=0.0).to(tl.int32, bitcast=True), begin)
        to_end = tl.minimum(tl.load(ends, mask=own, other=0.0).to(tl.int32, bitcast=True), end)
        tl.store(begins, from_begin.to(tl.float32, bitcast=True), mask=own)
        tl.store(ends, to_end.to(tl.float32, bitcast=True), mask=own)


@triton.jit(do_not_specialize=["k_total", "k_rows", "heads"])
def scan_back(
    x_ptr, dsums_ptr, dx_ptr, cu_seqlens_ptr, x_stride_head, x_stride_token, k_total, k_rows, heads,
    RESET: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Store dx, the gradient of the summed values x: for each token, the sum of dsums from that token to the end.

    Values of RESET or less, which begin a document, have a gradient of 0. There are `heads` heads.
    """
    b, h = tl.program_id(0) // heads, tl.program_id(0) % heads
    offset, past = find_rows(cu_seqlens_ptr, b, k_total)
    count = past - offset
    aligned = (offset // 4 + b) * 4
    x_ptr += h.to(tl.int64) * x_stride_head + offset.to(tl.int64) * x_stride_token
    dsums_ptr += h.to(tl.int64) * k_rows + aligned
    dx_ptr += h.to(tl.int64) * k_total + offset
    carry = tl.full([], 0.0, tl.float64)
    for start in tl.range(0, count, BLOCK):
        token = count - 1 - start - tl.arange(0, BLOCK)
        dsums = tl.load(dsums_ptr + token, mask=token >= 0, other=0.0).to(tl.float64)
        dx = carry + tl.cumsum(dsums, 0)
        # a value that begins a document adds nothing to the sums
        x = tl.load(x_ptr + token.to(tl.int64) * x_stride_token, mask=token >= 0, other=0.0)
        # through float32, as the interpreter cannot convert float64 to bfloat16
        dx32 = tl.where(x <= RESET, 0.0, dx).to(tl.float32)
        tl.store(dx_ptr + token, dx32.to(dx_ptr.dtype.element_ty), mask=token >= 0)
        carry = last_of(dx)
