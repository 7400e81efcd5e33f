# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gemma2_local.yaml
#   content hash  ab9a1b2922458377
#   text hash     c5798191471d965c
#   render with   attnforge render specs/gemma2_local.yaml
"""Decoding: attention of new tokens over a KV cache; the header of kernels.py has the formulas and names.

Programs
    attend_split   a split of the keys of one sequence and key head, for a tile of BLOCK_M rows: pairs of a new token
                   and one of the GROUP query heads that read the key head; if there are few splits, the last program
                   to finish joins the partial results of all
    join_splits    one new token and TOGETHER query heads; joins the partial results of all splits if there are many
    append_rows    one new token; writes its keys and values to the cache

The grid of `attend_split` is (key heads x splits x tiles, sequences); tiles vary fastest, as those of a split read the
same keys. Only the first axis of a grid may exceed 65535. The grid of `join_splits` is (new tokens of a sequence, query
heads over TOGETHER, sequences).

A split begins at a multiple of split_size keys, a tile of keys at a multiple of BLOCK_N. Which keys are summed together
depends on the largest number of new tokens of a sequence in the call, but not on other lengths or on pages. Partial
results are added up in chunks of CHUNK splits, which begin at multiples of CHUNK: within a chunk one after the other,
across chunks by a tree of pairs, in which missing chunks count as zeros. So bits do not depend on how many splits the
host makes room for. Programs are started for the splits of the first_keys keys of a sequence and, beginning with that
of the key `reach` before the first new token, for as many as the host makes room for. On GPUs that can (OVERLAP),
both kernels start while the previous one ends, and wait for what it has stored.

Tensors, by their axes
    q, out             [tokens, Hq, D], [tokens, Hq, DV]: the new tokens of all sequences
    k, v               [pages, place in the page, Hkv, D], [.., DV]; without a page table each sequence has one page,
                       the whole axis
    k_new, v_new       [tokens, Hkv, D], [.., DV]: the rows that `append_rows` writes
    slots_ptr          [tokens], int64: the place of each of these in the cache; tokens with no valid place are skipped
    seq_lens           [sequences], int32: number of keys of each sequence, including those of its new tokens
    cu_seqlens_q       [sequences + 1], int32: where each sequence's new tokens begin; None: each has `longest` of them
    pages              [sequences, pages of a sequence]; entries of pages that no row sees are not read
    k_starts           [sequences], int32: the place of each sequence's first key, without pages; None: 0
    k_scale, v_scale   [sequences, pages, place in the page, Hkv], float32, with strides of 0 along axes that share one:
                       factors of keys and values in float8; None for other types
    parts              [tokens, Hq, splits, DV], float32: the partial out of each split that has a program; after that
                       [tokens, Hq, splits]: the partial LSE in log2 units, -inf if a split shows a row nothing; its
                       partial out is not written then
    counts             [sequences, groups of key heads that a program reads], int32: number of programs of
                       `attend_split` that have stored their parts, 0 before and after the call; None if `join_splits`
                       joins them
    lse                [sequences, Hq, rows] or [Hq, tokens], depending on strides, float32 in natural-log units

Symbols
    b                    a sequence
    Hkv                  number of key heads
    kv_h, GROUP          a key head, and the number of query heads that read it
    tokens, longest      number of new tokens of all sequences, and the maximum of one sequence
    token                index of a sequence's first new token among those of all sequences
    max_seqlen_k         keys per sequence that the host made room for; later keys are ignored
    splits, split_size   splits per sequence that `parts` has room for, and keys per split
    first_keys, reach    number of first keys, and of keys before the first new token, that masks may show
    head                 number of splits of the first_keys keys
    first_split          the split of the key that is `reach` before the first new token, or `head` if that is larger
    split_end            one past the split of the last key
    slot                 the place of a split in `parts`: splits before `head`, then those from first_split on; in
                         `append_rows` the place of a token in the cache, page * page_size + place in the page
    slots, page_size     number of places in the cache, and in one page
    place                rows of a tile: pairs of a token and a head, with the heads of a token adjacent
    row                  their tokens, counted from the first new token of the sequence
    own_row              their rows in inputs and lse: counted among all tokens if cu_seqlens_q is given, else `row`
    count                number of rows of the sequence: q_len * GROUP
    lo, hi               range [lo, hi) of the keys that are visible to some row of the tile
    full_lo, full_hi     range of the keys that are visible to all its rows
    inside               which keys of a tile, or which places, are read
    page                 pages of the next tile's keys, loaded one tile ahead
    k_page, k_slot       pages of a tile's keys, and the places in them
    k_begin, k_places    the place of a sequence's first key in a cache without pages; the number of its places
    PAGE                 number of places in a page; 1 without a page table
    q_unit               factor of each row's scores: the power of 2 that q is divided by if float16 replaces bfloat16,
                         times the scale if BY_HEAD
    key, APART           keys of a tile, counted from its first; whether the page of each key is looked up by itself
    there                which of a tile's keys are loaded, None: all; which rows or heads of a program exist
    TURNED               whether products take the rows of a tile as columns, as they do if there are few
    SUMS                 number of partial sums of each row's weights
    IN_TWOS              whether float8 values are read two columns at a time
    KV_HEADS             number of key heads that a program reads
    QUERIES              number of query heads that read the key heads of a program
    own                  the one of a program's key heads that a row reads
    BY_HEAD              whether all float8 keys of a head share one scale
    FAR                  whether rows of a tile may be 2**31 elements apart
    CHUNK                number of splits that are added one after the other
    CHUNKS, BLOCK_S      number of chunks that are loaded at a time, and of the splits in them
    COLUMNS, TOGETHER    number of columns of out that a program joins at a time, and of its query heads
    column               columns of out
    BLOCK_H              number of key heads, rounded up to a power of 2
    out_row, lse_row     the places of rows in out, counted in rows, and in lse
    sequences            number of sequences
    came                 number of programs of other splits of the same rows that stored their parts before this one
    JOINED               number of rows that the last of these programs joins; 0 if `join_splits` joins all
    MEASURED             whether float8 scales are computed here and stored
    OVERLAP              whether a kernel starts while the previous one ends
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from . import runtime
from .kernels import LOG2E, add_product, rotated, tanh

INTERPRETED = tl.constexpr(runtime.INTERPRETED)


@triton.jit
def find_sequence(seq_lens_ptr, cu_seqlens_q_ptr, b, tokens, longest, max_seqlen_k):
    """First new token of sequence b, and its numbers of new tokens and keys, limited to what the host made room for."""
    k_len = tl.minimum(tl.maximum(tl.load(seq_lens_ptr + b), 0), max_seqlen_k)
    if cu_seqlens_q_ptr is None:
        first, end = b * longest, (b + 1) * longest
    else:
        first = tl.minimum(tl.maximum(tl.load(cu_seqlens_q_ptr + b), 0), tokens)
        end = tl.maximum(tl.minimum(tl.load(cu_seqlens_q_ptr + b + 1), tokens), first)
    return first, tl.minimum(end - first, longest), k_len


@triton.jit
def find_first_key(k_starts_ptr, b, k_len, k_places):
    """The place of a sequence's first key in a dense cache, limited so that its last key is in the cache, too."""
    if k_starts_ptr is None:
        begin = tl.zeros([], tl.int32)
    else:
        begin = tl.maximum(tl.minimum(tl.load(k_starts_ptr + b), k_places - k_len), 0)
    return begin


@triton.jit
def find_tile(pages_ptr, k_start, lo, hi, BLOCK_N: tl.constexpr, PAGE: tl.constexpr):
    """The pages of a tile's keys, or the one that holds them all; entries of keys outside [lo, hi) are not read."""
    if PAGE % BLOCK_N == 0:
        page = tl.load(pages_ptr + k_start // PAGE, mask=(k_start < hi) & (k_start + BLOCK_N > lo), other=0)
    else:
        key = tl.arange(0, BLOCK_N)
        k_pos = k_start + key
        # if whole pages fill a tile, a key is in the same one of them in every tile
        nth = k_start // PAGE + key // PAGE if BLOCK_N % PAGE == 0 else k_pos // PAGE
        page = tl.load(pages_ptr + nth, mask=(k_pos >= lo) & (k_pos < hi), other=0)
    return page


@triton.jit
def nth_of(n, head, first):
    """The n-th of the numbers from 0 to head - 1 and from `first` on."""
    return tl.where(n < head, n, n - head + tl.maximum(first, head))


@triton.jit
def key_span(q_first, q_last, k_len):
    """The keys that a tile of rows sees, [lo, hi), and those among them that need no mask."""
    lo = tl.maximum(q_first - 4095, 0)
    hi = tl.maximum(tl.minimum(q_last + 1, k_len), lo)
    full_lo = tl.maximum(tl.maximum(q_last - 4095, 0), lo)
    full_hi = tl.minimum(tl.minimum(q_first + 1, k_len), hi)
    return lo, hi, full_lo, full_hi


@triton.jit
def load_places(
    ptr, place, inside, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TURNED: tl.constexpr = False,
    IN_TWOS: tl.constexpr = False
):  # fmt: skip
    """Load the rows at some places, as COLUMNS columns; 0 in rows not `inside`, if given, and past column WIDTH.

    The result is [places, COLUMNS], or if TURNED [COLUMNS, places]. If IN_TWOS, a column is two bytes, as an integer.
    """
    DOWN: tl.constexpr = 0 if TURNED else 1  # the axis to expand places along
    place, column = tl.expand_dims(place, DOWN), tl.expand_dims(tl.arange(0, COLUMNS), 1 - DOWN)
    if IN_TWOS:
        ptr = (ptr + place).to(tl.pointer_type(tl.int16)) + column
    else:
        ptr += place + column
    if inside is not None:
        rows = tl.load(ptr, mask=tl.expand_dims(inside, DOWN) & (column < WIDTH), other=0.0)
    elif WIDTH < COLUMNS:
        rows = tl.load(ptr, mask=column < WIDTH, other=0.0)
    else:
        rows = tl.load(ptr)
    return rows


@triton.jit
def load_twos(ptr, place, inside, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Load float8 rows, turned as by `load_places`, as float16: their even columns, and their odd ones.

    Reads of shared memory can transpose two bytes at a time, but not one.
    """
    both = load_places(ptr, place, inside, WIDTH // 2, COLUMNS // 2, TURNED=True, IN_TWOS=True)
    if INTERPRETED:
        even, odd = both & 255, both >> 8 & 255
        even, odd = [x.to(tl.uint8).to(ptr.dtype.element_ty, bitcast=True).to(tl.float16) for x in (even, odd)]
    else:
        # for two numbers at a time: put the bytes of even columns side by side, and those of odd ones
        code: tl.constexpr = """{
            .reg .b32 sorted; .reg .b16 low, high;
            prmt.b32 sorted, $2, 0, 0x3120; mov.b32 {low, high}, sorted;
            cvt.rn.f16x2.e4m3x2 $0, low; cvt.rn.f16x2.e4m3x2 $1, high;
        }"""
        even, odd = tl.inline_asm_elementwise(code, "=r,=r,r", [both], (tl.float16, tl.float16), True, 2)
    return even, odd


@triton.jit
def quantised(rows, scale_ptr, there, dtype: tl.constexpr, MEASURED: tl.constexpr):
    """The `rows` as a float8 cache of type `dtype` holds them: divided by scales, either read or MEASURED and stored.

    Only heads that are `there` have a scale.
    """
    rows = rows.to(tl.float32)
    if MEASURED:
        scale = tl.max(tl.abs(rows), 1) / 448
        scale = tl.where(scale == 0, 1.0, scale)
        tl.store(scale_ptr, scale, mask=there)
    else:
        scale = tl.load(scale_ptr, mask=there, other=1.0)
    # beyond 448 a float8 is NaN
    rows = tl.minimum(tl.maximum(rows / scale[:, None], -448.0), 448.0)
    if INTERPRETED:
        # the interpreter does not carry from the mantissa: round to an eighth of the power of 2 below, at least 2**-9
        power = tl.maximum(rows.to(tl.int32, bitcast=True) >> 23 & 255, 121)
        large = 1.5 * (power + 20 << 23).to(tl.float32, bitcast=True)
        rows = (rows + large) - large
    return rows.to(dtype)


@triton.jit
def row_units(q_tile):
    """A power of 2 for each row, by which its numbers are divided to be below 16."""
    top = tl.max(tl.abs(q_tile.to(tl.float32)), 1)
    exponent = tl.maximum((top.to(tl.int32, bitcast=True) >> 23 & 255) - 3, 1)
    return (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def in_units(q_tile, unit):
    """bfloat16 rows, each divided by its `unit`, in float16, which can hold float8 as well."""
    return (q_tile.to(tl.float32) / unit[:, None]).to(tl.float16)


@triton.jit
def find_rows(ptr, page, slot, key, stride_page, stride_token, APART: tl.constexpr):
    """A pointer, and offsets from it of a tile's keys: each in its own page, or all in one page, the first at `slot`.

    Pages are stride_page apart, tokens of a page stride_token.
    """
    if APART:
        place = page.to(tl.int64) * stride_page + slot.to(tl.int64) * stride_token
    else:
        ptr += page.to(tl.int64) * stride_page + slot.to(tl.int64) * stride_token
        place = key * stride_token
    return ptr, place


@triton.jit
def apart(rows, own, KV_HEADS: tl.constexpr):
    """The rows, KV_HEADS times as wide: 0 outside the columns of their own head."""
    there = (own[:, None] == tl.arange(0, KV_HEADS)[None, :])[:, :, None]
    return tl.where(there, rows[:, None, :], 0.0).to(rows.dtype).reshape([rows.shape[0], KV_HEADS * rows.shape[1]])


@triton.jit
def own_columns(rows, own, KV_HEADS: tl.constexpr):
    """The columns of their own head, from rows that are KV_HEADS times as wide."""
    there = (own[:, None] == tl.arange(0, KV_HEADS)[None, :])[:, :, None]
    return tl.sum(tl.where(there, rows.reshape([rows.shape[0], KV_HEADS, rows.shape[1] // KV_HEADS]), 0.0), 1)


@triton.jit
def multiply(q_tile, k_tile, PRECISION: tl.constexpr, TURNED: tl.constexpr):
    """The products of all rows with all keys, [BLOCK_M, BLOCK_N].

    Tensor cores compute 16 rows by 8 columns at a time: if TURNED, the rows of queries are the columns.
    """
    if TURNED:
        score = tl.dot(k_tile, q_tile.T, input_precision=PRECISION).T
    else:
        score = tl.dot(q_tile, k_tile.T, input_precision=PRECISION)
    return score


@triton.jit
def add_values(acc, p, v_tile, PRECISION: tl.constexpr, TURNED: tl.constexpr, IN_TWOS: tl.constexpr = False):
    """The sums of values per row, acc, plus the weighted values of a tile; if TURNED, rows are the columns.

    If IN_TWOS, v_tile is two tiles, of even columns and of odd ones.
    """
    if IN_TWOS:
        even, odd = tl.split(acc.reshape([acc.shape[0], acc.shape[1] // 2, 2]))
        even, odd = add_values(even, p, v_tile[0], PRECISION, TURNED), add_values(odd, p, v_tile[1], PRECISION, TURNED)
        acc = tl.join(even, odd).reshape([acc.shape[0], acc.shape[1]])
    elif TURNED:
        acc = add_product(acc.T, v_tile, p.T, PRECISION).T
    else:
        acc = add_product(acc, p, v_tile, PRECISION)
    return acc


@triton.jit
def sum_by_thread(p, SUMS: tl.constexpr, TURNED: tl.constexpr):
    """Partial sums of each row: each thread adds its own values, without exchange.

    Each is over every SUMS-th column; if TURNED, a thread's columns come in pairs, 8 apart in each 16 of a warp.
    """
    if TURNED:
        p = tl.sum(p.reshape([p.shape[0], p.shape[1] // 16, 2, 8]), 2)  # [BLOCK_M, BLOCK_N // 16, 8]
    return tl.sum(p.reshape([p.shape[0], p.numel // p.shape[0] // SUMS, SUMS]), 1)


@triton.jit
def sum_pairs(x, ROWS: tl.constexpr):
    """The sums of ROWS stretches of rows, each by a tree of pairs, which trailing rows of zeros do not change."""
    for _ in tl.static_range(ROWS, x.shape[0]):
        if x.shape[0] > ROWS:
            x = tl.sum(x.reshape([x.shape[0] // 2, 2, x.shape[1]]), 1)
    return x


@triton.jit
def by_chunk(x, CHUNKS: tl.constexpr):
    """The values of rows, repeated for each of their chunks: [rows * CHUNKS, 1]."""
    return x[:, None].broadcast_to([x.shape[0], CHUNKS]).reshape([x.shape[0] * CHUNKS, 1])


@triton.jit
def find_splits(q_len, k_len, reach, first_keys, split_size):
    """Splits that new tokens of a sequence may see: those before `head`, and those in [first_split, split_end)."""
    head = tl.cdiv(first_keys, split_size)
    first_split = tl.maximum(tl.maximum(k_len - q_len - reach, 0) // split_size, head)
    return head, first_split, tl.cdiv(k_len, split_size)


@triton.jit
def count_slots(head, first_split, split_end):
    """The number of these splits."""
    return tl.minimum(head, split_end) + tl.maximum(split_end - first_split, 0)


@triton.jit
def joined_rows(
    b, kv_h, token, q_len, cu_seqlens_q_ptr, lse_stride_sequence, lse_stride_head, Hq, QUERIES: tl.constexpr,
    ROWS: tl.constexpr
):  # fmt: skip
    """For ROWS rows of a sequence and QUERIES heads: which exist, their heads, and their places in out and in the LSE.

    Each is [ROWS]; rows past the last one have the place of the last one.
    """
    place = tl.arange(0, ROWS)
    row, h = tl.minimum(place // QUERIES, q_len - 1), kv_h * QUERIES + place % QUERIES
    own_row = row if cu_seqlens_q_ptr is None else token + row
    lse_row = tl.cast(b, tl.int64) * lse_stride_sequence + h.to(tl.int64) * lse_stride_head + own_row
    return place < q_len * QUERIES, h, (token + row).to(tl.int64) * Hq + h, lse_row


@triton.jit
def clear_rows(
    out_ptr, lse_ptr, lse_stride_head, cu_seqlens_q_ptr, b, sequences, token, q_len, tokens, i, step, h, there,
    column, Hq, DV: tl.constexpr
):  # fmt: skip
    """Clear rows that belong to no sequence, before the first one, and between the last token of b and the next one.

    Of these every `step`-th from the i-th on, and some columns of the heads h that are `there`.
    """
    before, behind = tl.where(b == 0, token, 0), token + q_len
    end = tl.where(b == sequences - 1, tokens, tl.load(cu_seqlens_q_ptr + b + 1))
    for j in tl.range(i, before + tl.maximum(tl.minimum(end, tokens) - behind, 0), step):
        place = nth_of(j, before, behind)
        nobody = (tl.cast(place, tl.int64) * Hq + h)[:, None] * DV + column
        nothing = tl.zeros([h.shape[0], column.shape[1]], out_ptr.dtype.element_ty)
        tl.store(out_ptr + nobody, nothing, mask=there[:, None] & (column < DV))
        if lse_ptr is not None:
            tl.store(lse_ptr + h.to(tl.int64) * lse_stride_head + place, float("-inf"), mask=there)


@triton.jit
def store_rows(out_ptr, lse_ptr, there, out_row, lse_row, column, acc, l, pivot, DV: tl.constexpr):
    """Store some columns of out and the LSE, in natural-log units, for each row that is `there`.

    Rows are at out_row in out and at lse_row in the LSE; acc and l are relative to `pivot`.
    """
    out = acc / tl.where(l == 0, 1.0, l)[:, None]
    out_ptrs = out_ptr + out_row[:, None] * DV + column
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=there[:, None] & (column < DV))
    if lse_ptr is not None:
        tl.store(lse_ptr + lse_row, tl.where(l == 0, float("-inf"), (pivot + tl.log2(l)) / LOG2E), mask=there)


@triton.jit
def store_nothing(
    out_ptr, lse_ptr, h, there, out_row, lse_row, column, DV: tl.constexpr
):  # fmt: skip
    """Store the result of rows that see no key, as `store_rows` does: zeros, and the LSE of the sinks, if any."""
    ROWS: tl.constexpr = h.shape[0]
    # [ROWS]
    m = tl.full([ROWS], float("-inf"), tl.float32)
    l = tl.full([ROWS], 0.0, tl.float32)
    acc = tl.zeros([ROWS, column.shape[1]], tl.float32)
    store_rows(out_ptr, lse_ptr, there, out_row, lse_row, column, acc, l, tl.where(l == 0, 0.0, m), DV)


@triton.jit
def join_parts(
    parts_ptr, out_ptr, lse_ptr, h, there, out_row, lse_row, column, head, first_split, split_end, tokens, Hq,
    splits, DV: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr
):  # fmt: skip
    """Store out and the LSE of rows: the partial results of splits, weighted by their LSEs.

    Splits are those before `head` and in [first_split, split_end); the rest is as in `store_rows`.
    """
    ROWS: tl.constexpr = h.shape[0]
    part_lse_ptr = parts_ptr + tl.cast(tokens, tl.int64) * Hq * splits * DV
    # [ROWS]
    m = tl.full([ROWS], float("-inf"), tl.float32)
    l = tl.full([ROWS], 0.0, tl.float32)
    # one maximum for all, so that no weight depends on CHUNKS; for few splits, as many at a time as a warp has threads
    TOPS: tl.constexpr = 32 * CHUNKS
    tops = m[:, None] + tl.zeros([ROWS, TOPS], tl.float32)
    slots = count_slots(head, first_split, split_end)
    for j in tl.range(0, slots, TOPS):
        slot = j + tl.arange(0, TOPS)[None, :]
        lse = tl.load(part_lse_ptr + out_row[:, None] * splits + slot, mask=slot < slots, other=float("-inf"))
        tops = tl.maximum(tops, lse)
    top = tl.max(tops, 1)
    # rows that have seen nothing keep -inf: use 0 instead, or -inf - -inf is NaN
    pivot = tl.where(top == float("-inf"), 0.0, top)
    l = l * tl.exp2(m - pivot)
    acc = tl.zeros([ROWS, column.shape[1]], tl.float32)
    # per chunk of each row: [ROWS * CHUNKS, 1], and with the columns of its parts
    PARTS: tl.constexpr = ROWS * CHUNKS
    chunk = tl.arange(0, PARTS)[:, None] % CHUNKS
    chunk_row, chunk_pivot = by_chunk(out_row, CHUNKS), by_chunk(pivot, CHUNKS)
    BLOCK_S: tl.constexpr = CHUNKS * CHUNK
    head_blocks, first_block = tl.cdiv(head, BLOCK_S), first_split // BLOCK_S
    blocks = head_blocks + tl.maximum(tl.cdiv(split_end, BLOCK_S) - tl.maximum(first_block, head_blocks), 0)
    for j in tl.range(0, blocks):
        weights, sums = tl.zeros([PARTS, 1], tl.float32), tl.zeros([PARTS, column.shape[1]], tl.float32)
        first = nth_of(j, head_blocks, first_block) * BLOCK_S + chunk * CHUNK
        lses, parts = (), ()
        for n in tl.static_range(CHUNK):
            split = first + n
            slot = tl.where(split < head, split, split - first_split + head)
            inside = (split < split_end) & ((split < head) | (split >= first_split))
            place = chunk_row * splits + slot
            lses += (tl.load(part_lse_ptr + place, mask=inside, other=float("-inf")),)
            parts += (tl.load(parts_ptr + place * DV + column, mask=inside & (column < DV), other=0.0),)
        for n in tl.static_range(CHUNK):
            weight = tl.exp2(lses[n] - chunk_pivot)
            weights += weight
            # a split without visible keys has not written its part, which may hold a NaN
            sums += tl.where(lses[n] > float("-inf"), parts[n], 0.0) * weight
        l += tl.sum(sum_pairs(weights, ROWS), 1)
        acc += sum_pairs(sums, ROWS)
    store_rows(out_ptr, lse_ptr, there, out_row, lse_row, column, acc, l, pivot, DV)


@triton.jit
def join_few(
    parts_ptr, out_ptr, lse_ptr, h, there, out_row, lse_row, column, head, first_split, split_end, tokens, Hq,
    splits, DV: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Do as `join_parts` does for up to CHUNK splits, with the same sums, but load parts at once, with their LSEs."""
    ROWS: tl.constexpr = h.shape[0]
    part_lse_ptr = parts_ptr + tl.cast(tokens, tl.int64) * Hq * splits * DV
    # [ROWS]
    m = tl.full([ROWS], float("-inf"), tl.float32)
    l = tl.full([ROWS], 0.0, tl.float32)
    slots = count_slots(head, first_split, split_end)
    top, lses, parts = m, (), ()
    for slot in tl.static_range(CHUNK):
        place = out_row * splits + slot
        inside = there & (slot < slots)
        # bypass the multiprocessor's own cache, which may still hold old values
        lse = tl.load(part_lse_ptr + place, mask=inside, other=float("-inf"), cache_modifier=".cg")
        inside = inside[:, None] & (column < DV)
        part = tl.load(parts_ptr + place[:, None] * DV + column, mask=inside, other=0.0, cache_modifier=".cg")
        top = tl.maximum(top, lse)
        lses += (lse,)
        parts += (part,)
    # rows that have seen nothing keep -inf: use 0 instead, or -inf - -inf is NaN
    pivot = tl.where(top == float("-inf"), 0.0, top)
    l = l * tl.exp2(m - pivot)
    acc = tl.zeros([ROWS, column.shape[1]], tl.float32)
    # sums of a chunk; splits begin in one, and may end in the next
    weights, sums = tl.zeros([ROWS], tl.float32), acc
    for slot in tl.static_range(CHUNK):
        if slot > 0:
            begins = nth_of(slot, head, first_split) // CHUNK != nth_of(slot - 1, head, first_split) // CHUNK
            l, weights = tl.where(begins, l + weights, l), tl.where(begins, 0.0, weights)
            acc, sums = tl.where(begins, acc + sums, acc), tl.where(begins, 0.0, sums)
        weight = tl.exp2(lses[slot] - pivot)
        weights += weight
        # a split without visible keys has not written its part, which may hold a NaN
        sums += tl.where((lses[slot] > float("-inf"))[:, None], parts[slot], 0.0) * weight[:, None]
    l, acc = l + weights, acc + sums
    store_rows(out_ptr, lse_ptr, there, out_row, lse_row, column, acc, l, pivot, DV)


@triton.jit
def load_rotated(
    ptr, place, inside, position, cos_ptr, cos_stride_row, cos_stride_column, sin_ptr, sin_stride_row,
    sin_stride_column, position_end, FIRST: tl.constexpr, WIDTH: tl.constexpr, PAIRS: tl.constexpr,
    COLUMNS: tl.constexpr
):  # fmt: skip
    """Load the rows at some places, with their pairs rotated by the angles of each `position`.

    The result has COLUMNS columns, beginning with column FIRST of WIDTH.
    """
    column = FIRST + tl.arange(0, COLUMNS)
    second = column >= PAIRS
    pair = tl.where(second, column - PAIRS, column)
    other = tl.where(second, column - PAIRS, column + PAIRS)
    turned = (column < 2 * PAIRS)[None, :] & inside[:, None]
    x = load_places(ptr + FIRST, place, inside, WIDTH - FIRST, COLUMNS)
    y = tl.load(ptr + place[:, None] + other[None, :], mask=turned, other=0.0).to(tl.float32)
    angle = tl.minimum(tl.maximum(position, 0), position_end - 1).to(tl.int64)[:, None]
    cos = tl.load(cos_ptr + angle * cos_stride_row + pair[None, :] * cos_stride_column, mask=turned, other=1.0)
    sin = tl.load(sin_ptr + angle * sin_stride_row + pair[None, :] * sin_stride_column, mask=turned, other=0.0)
    y = tl.where(second[None, :], y, -y)
    return rotated(x.to(tl.float32), y, cos.to(tl.float32), sin.to(tl.float32)).to(x.dtype)


@triton.jit
def attend(
    acc, m, l, page, q_tile, k_start, q_unit, pages_ptr, k_scale_ptr, v_scale_ptr, keys, terms,
    PAGE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, KV_HEADS: tl.constexpr, PRECISION: tl.constexpr, SUMS: tl.constexpr,
    IN_TWOS: tl.constexpr, FAR: tl.constexpr, TURNED: tl.constexpr, mixed
):  # fmt: skip
    """Update the running softmax (acc, m, l) with the keys of a tile that are in [lo, hi); `page` advances."""
    (
        k_ptr, v_ptr, k_begin, lo, hi, k_stride_page, k_stride_token, v_stride_page, v_stride_token,
        k_scale_stride_page, k_scale_stride_token, v_scale_stride_page, v_scale_stride_token
    ) = keys  # fmt: skip
    scale, q_pos = terms
    # [BLOCK_N]
    key = tl.arange(0, BLOCK_N)
    k_pos = k_start + key
    # other keys are not even read: their pages may belong to other sequences by now
    inside = (k_pos >= lo) & (k_pos < hi)
    k_page, k_slot = page.to(tl.int64) + tl.zeros([BLOCK_N], tl.int64), k_pos + k_begin
    if pages_ptr is not None:
        # if whole pages fill a tile, keys have the same places in every tile
        k_slot = (key if BLOCK_N % PAGE == 0 else k_pos) % PAGE
    APART: tl.constexpr = pages_ptr is not None and PAGE % BLOCK_N != 0
    slot, there = k_slot, inside
    if not APART:
        # keys that are not inside are replaced by the nearest one that is, so that loads need no mask. Offsets from the
        # tile's first place have 32 bits, unless rows are FAR apart
        slot, there = k_start + k_begin if pages_ptr is None else k_start % PAGE, None
        key = tl.minimum(tl.maximum(key, lo - k_start), hi - 1 - k_start).to(tl.int64 if FAR else tl.int32)
    k_ptr, k_place = find_rows(k_ptr, page, slot, key, k_stride_page, k_stride_token, APART)
    v_ptr, v_place = find_rows(v_ptr, page, slot, key, v_stride_page, v_stride_token, APART)
    if pages_ptr is not None:
        # one tile ahead, so that keys do not wait for their page numbers
        page = find_tile(pages_ptr, k_start + BLOCK_N, lo, hi, BLOCK_N, PAGE)
    # [BLOCK_N, BLOCK_D]
    k_tile = load_places(k_ptr, k_place, there, D * KV_HEADS, BLOCK_D * KV_HEADS).to(q_tile.dtype)
    score = multiply(q_tile, k_tile, PRECISION, TURNED) * (scale / 50.0)  # [BLOCK_M, BLOCK_N]
    if k_scale_ptr is not None:
        k_scale_place = k_page * k_scale_stride_page + k_slot.to(tl.int64) * k_scale_stride_token
        score = score * tl.load(k_scale_ptr + k_scale_place, mask=inside, other=0.0)[None, :]
    if q_unit is not None:
        score = score * q_unit[:, None]
    score = tanh(score)  # softcap
    # [BLOCK_N, BLOCK_DV], or where TURNED [BLOCK_DV, BLOCK_N]
    if IN_TWOS:
        v_tile = load_twos(v_ptr, v_place, there, DV * KV_HEADS, BLOCK_DV * KV_HEADS)
    else:
        v_tile = load_places(v_ptr, v_place, there, DV * KV_HEADS, BLOCK_DV * KV_HEADS, TURNED).to(q_tile.dtype)
    score = score * (50.0 * LOG2E)
    if mixed:
        keep = inside[None, :]
        distance = q_pos[:, None] - k_pos[None, :]
        keep &= distance >= 0  # causal
        keep &= distance < 4096  # sliding_window
        score = tl.where(keep, score, float("-inf"))
    # [BLOCK_M]
    m_new = tl.maximum(m, tl.max(score, 1))
    # a row that has seen no key yet has m = -inf: subtract 0 instead, as -inf - -inf is NaN
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(score - pivot[:, None])  # [BLOCK_M, BLOCK_N]
    shrink = tl.exp2(m - pivot)  # [BLOCK_M]
    acc, l, m = acc * shrink[:, None], l * shrink[:, None], m_new
    l += sum_by_thread(p, SUMS, TURNED)
    if v_scale_ptr is not None:
        v_scale_place = k_page * v_scale_stride_page + k_slot.to(tl.int64) * v_scale_stride_token
        p = p * tl.load(v_scale_ptr + v_scale_place, mask=inside, other=0.0)[None, :]
    acc = add_values(acc, p.to(q_tile.dtype), v_tile, PRECISION, TURNED, IN_TWOS)  # [BLOCK_M, BLOCK_DV]
    return acc, m, l, page


@triton.jit(
    do_not_specialize=[
        "max_seqlen_k",
        "reach",
        "first_keys",
        "position_end",
        "k_places",
        "tokens",
        "longest",
        "Hq",
        "splits",
        "split_size",
    ]
)
def attend_split(
    q_ptr, k_ptr, v_ptr, seq_lens_ptr, cu_seqlens_q_ptr, pages_ptr, k_starts_ptr, parts_ptr, scale, k_scale_ptr,
    v_scale_ptr, out_ptr, lse_ptr, cos_ptr, sin_ptr, positions_ptr, max_seqlen_k, reach, first_keys, counts_ptr,
    lse_stride_sequence, lse_stride_head, cos_stride_row, cos_stride_column, sin_stride_row, sin_stride_column,
    position_end, q_stride_token, q_stride_head, k_stride_page, k_stride_token, k_stride_head, v_stride_page,
    v_stride_token, v_stride_head, k_scale_stride_sequence, k_scale_stride_page, k_scale_stride_token,
    k_scale_stride_head, v_scale_stride_sequence, v_scale_stride_page, v_scale_stride_token, v_scale_stride_head,
    pages_stride_sequence, k_places, tokens, longest, Hq, splits, split_size, GROUP: tl.constexpr,
    PAGE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, PAIRS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, PRECISION: tl.constexpr,
    TURNED: tl.constexpr, SUMS: tl.constexpr, IN_TWOS: tl.constexpr, KV_HEADS: tl.constexpr,
    BY_HEAD: tl.constexpr, FAR: tl.constexpr, OVERLAP: tl.constexpr, CHUNK: tl.constexpr, JOINED: tl.constexpr,
    COLUMNS: tl.constexpr
):  # fmt: skip
    """Store the partial out and LSE of a split of keys for a tile of rows.

    If JOINED, the programs of all splits count how many have arrived, and the last one joins their JOINED rows.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    QUERIES: tl.constexpr = GROUP * KV_HEADS
    tiles, b = tl.cdiv(longest * QUERIES, BLOCK_M), tl.program_id(1)
    tile, rest = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    slot, kv_h = rest % splits, rest // splits
    if BLOCK_D <= 64:
        # rows are short: the key heads of the same keys, which are adjacent in memory, are read at the same time
        Hkv = Hq // QUERIES
        kv_h, slot = rest % Hkv, rest // Hkv
    token, q_len, k_len = find_sequence(seq_lens_ptr, cu_seqlens_q_ptr, b, tokens, longest, max_seqlen_k)
    k_begin = find_first_key(k_starts_ptr, b, k_len, k_places)
    count = q_len * QUERIES
    head, first_split, split_end = find_splits(q_len, k_len, reach, first_keys, split_size)
    split_begin = nth_of(slot, head, first_split) * split_size
    if JOINED and cu_seqlens_q_ptr is not None:
        if slot == 0:
            clear_rows(
                out_ptr, lse_ptr, lse_stride_head, cu_seqlens_q_ptr, b, tl.num_programs(1), token, q_len, tokens, 0, 1,
                kv_h * QUERIES + tl.arange(0, JOINED), tl.arange(0, JOINED) < QUERIES, tl.arange(0, BLOCK_DV)[None, :],
                Hq, DV
            )  # fmt: skip
    if (tile * BLOCK_M >= count) | (split_begin >= k_len):
        if JOINED:
            if (slot == 0) & (k_len == 0):
                # no split has a partial result
                there, h, out_row, lse_row = joined_rows(
                    b, kv_h, token, q_len, cu_seqlens_q_ptr, lse_stride_sequence, lse_stride_head, Hq, QUERIES, JOINED
                )  # fmt: skip
                store_nothing(
                    out_ptr, lse_ptr, h, there, out_row, lse_row, tl.arange(0, BLOCK_DV)[None, :], DV
                )  # fmt: skip
        return
    k_ptr += (kv_h * KV_HEADS).to(tl.int64) * k_stride_head
    v_ptr += (kv_h * KV_HEADS).to(tl.int64) * v_stride_head
    if pages_ptr is not None:
        pages_ptr += b.to(tl.int64) * pages_stride_sequence
    if k_scale_ptr is not None:
        k_scale_ptr += b.to(tl.int64) * k_scale_stride_sequence + (kv_h * KV_HEADS).to(tl.int64) * k_scale_stride_head
        v_scale_ptr += b.to(tl.int64) * v_scale_stride_sequence + (kv_h * KV_HEADS).to(tl.int64) * v_scale_stride_head
    q_begin = k_len - q_len
    # [BLOCK_M]
    place = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tl.minimum(place // QUERIES, q_len - 1)
    h = kv_h * QUERIES + place % QUERIES
    q_pos = row + q_begin
    q_first = tile * BLOCK_M // QUERIES + q_begin
    q_last = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // QUERIES + q_begin, k_len - 1)
    # [BLOCK_M]
    own = place % QUERIES // GROUP

    q_place = (token + row).to(tl.int64) * q_stride_token + h.to(tl.int64) * q_stride_head
    position = q_pos if positions_ptr is None else tl.load(positions_ptr + token + row)
    q_tile = load_rotated(
        q_ptr, q_place, place < count, position, cos_ptr, cos_stride_row, cos_stride_column, sin_ptr,
        sin_stride_row, sin_stride_column, position_end, 0, D, PAIRS, BLOCK_D
    )  # fmt: skip
    q_unit = None
    if (k_ptr.dtype.element_ty.primitive_bitwidth == 8) & (q_ptr.dtype.element_ty == tl.bfloat16):
        q_unit = row_units(q_tile)
        q_tile = in_units(q_tile, q_unit)
    if KV_HEADS > 1:
        # [BLOCK_M, KV_HEADS * BLOCK_D]
        q_tile = apart(q_tile, own, KV_HEADS)
    v_scale = 1.0
    if BY_HEAD:
        # scales that all keys share become factors of the rows, and of their result
        unit = tl.load(k_scale_ptr + own * k_scale_stride_head)
        v_scale = tl.load(v_scale_ptr + own * v_scale_stride_head)
        q_unit = unit * (tl.full([BLOCK_M], 1.0, tl.float32) if q_unit is None else q_unit)
        k_scale_ptr, v_scale_ptr = None, None
    # [BLOCK_M, BLOCK_DV]
    acc = tl.zeros([BLOCK_M, BLOCK_DV * KV_HEADS], tl.float32)
    # [BLOCK_M]
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    # [BLOCK_M, SUMS]
    l = tl.full([BLOCK_M, SUMS], 0.0, tl.float32)
    lo, hi, full_lo, full_hi = key_span(q_first, q_last, k_len)
    begin, end = tl.maximum(lo, split_begin), tl.minimum(hi, split_begin + split_size)
    first = begin // BLOCK_N
    last = tl.where(begin < end, tl.cdiv(end, BLOCK_N), first)
    keys = (
        k_ptr, v_ptr, k_begin, lo, hi, k_stride_page, k_stride_token, v_stride_page, v_stride_token,
        k_scale_stride_page, k_scale_stride_token, v_scale_stride_page, v_scale_stride_token
    )  # fmt: skip
    terms = (scale, q_pos)
    page = b if pages_ptr is None else find_tile(pages_ptr, first * BLOCK_N, lo, hi, BLOCK_N, PAGE)
    for i in tl.range(first, last):
        k_start = i * BLOCK_N
        mixed = (k_start < full_lo) | (k_start + BLOCK_N > full_hi)
        acc, m, l, page = attend(
            acc, m, l, page, q_tile, k_start, q_unit, pages_ptr, k_scale_ptr, v_scale_ptr, keys, terms, PAGE, D,
            DV, BLOCK_N, BLOCK_D, BLOCK_DV, KV_HEADS, PRECISION, SUMS, IN_TWOS, FAR, TURNED, mixed=mixed
        )  # fmt: skip

    # by a tree of pairs, whatever the number of warps
    l = sum_pairs(l.reshape([BLOCK_M * SUMS, 1]), BLOCK_M).reshape([BLOCK_M])
    # for rows to which the split shows nothing, only the LSE says so
    lse = tl.where(l == 0, float("-inf"), m + tl.log2(l))
    if KV_HEADS > 1:
        acc = own_columns(acc, own, KV_HEADS)
    part = ((token + row).to(tl.int64) * Hq + h) * splits + slot
    tl.store(parts_ptr + tl.cast(tokens, tl.int64) * Hq * splits * DV + part, lse, mask=place < count)
    column, shares = tl.arange(0, BLOCK_DV), v_scale / tl.where(l == 0, 1.0, l)
    seen = ((place < count) & (l > 0))[:, None] & (column < DV)[None, :]
    tl.store(parts_ptr + part[:, None] * DV + column[None, :], acc * shares[:, None], mask=seen)
    if JOINED:
        # programs that arrived earlier have stored their parts; this one has, once all its threads reach the barrier
        tl.debug_barrier()
        count_ptr = counts_ptr + b * (Hq // QUERIES) + kv_h
        came = tl.atomic_add(count_ptr, 1, sem="acq_rel")
        there, h, out_row, lse_row = joined_rows(
            b, kv_h, token, q_len, cu_seqlens_q_ptr, lse_stride_sequence, lse_stride_head, Hq, QUERIES, JOINED
        )  # fmt: skip
        if came == count_slots(head, first_split, split_end) - 1:
            tl.store(count_ptr, 0)
            for first_column in tl.static_range(0, BLOCK_DV, COLUMNS):
                join_few(
                    parts_ptr, out_ptr, lse_ptr, h, there, out_row, lse_row, first_column + tl.arange(0, COLUMNS)[None, :],
                    head, first_split, split_end, tokens, Hq, splits, DV, CHUNK
                )  # fmt: skip


@triton.jit(
    do_not_specialize=["max_seqlen_k", "reach", "first_keys", "tokens", "longest", "Hq", "splits", "split_size"]
)
def join_splits(
    parts_ptr, seq_lens_ptr, cu_seqlens_q_ptr, out_ptr, lse_ptr, max_seqlen_k, reach, first_keys,
    lse_stride_sequence, lse_stride_head, tokens, longest, Hq, splits, split_size, DV: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, COLUMNS: tl.constexpr, TOGETHER: tl.constexpr,
    OVERLAP: tl.constexpr
):  # fmt: skip
    """Join the partial results of all splits for some rows, and clear rows that belong to no sequence."""
    i, b = tl.program_id(0) % longest, tl.program_id(2)
    h = tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER)  # [TOGETHER]
    there = h < Hq
    # lengths and cuts were ready before attend_split began
    token, q_len, k_len = find_sequence(seq_lens_ptr, cu_seqlens_q_ptr, b, tokens, longest, max_seqlen_k)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    column = tl.program_id(0) // longest * COLUMNS + tl.arange(0, COLUMNS)[None, :]  # [1, COLUMNS]
    own_row = i
    if cu_seqlens_q_ptr is not None:
        own_row = token + i
        clear_rows(
            out_ptr, lse_ptr, lse_stride_head, cu_seqlens_q_ptr, b, tl.num_programs(2), token, q_len, tokens, i,
            longest, h, there, column, Hq, DV
        )  # fmt: skip
    if i >= q_len:
        return
    head, first_split, split_end = find_splits(q_len, k_len, reach, first_keys, split_size)
    # [TOGETHER]
    out_row = (token + i).to(tl.int64) * Hq + h
    lse_row = tl.cast(b, tl.int64) * lse_stride_sequence + h.to(tl.int64) * lse_stride_head + own_row
    join_parts(
        parts_ptr, out_ptr, lse_ptr, h, there, out_row, lse_row, column, head, first_split, split_end, tokens,
        Hq, splits, DV, CHUNK, CHUNKS
    )  # fmt: skip


@triton.jit(do_not_specialize=["position_end", "slots", "page_size", "Hkv"])
def append_rows(
    k_new_ptr, v_new_ptr, k_ptr, v_ptr, slots_ptr, k_scale_ptr, v_scale_ptr, cos_ptr, sin_ptr, positions_ptr,
    cos_stride_row, cos_stride_column, sin_stride_row, sin_stride_column, position_end, k_new_stride_token,
    k_new_stride_head, v_new_stride_token, v_new_stride_head, k_stride_page, k_stride_token, k_stride_head,
    v_stride_page, v_stride_token, v_stride_head, k_scale_stride_page, k_scale_stride_token, k_scale_stride_head,
    v_scale_stride_page, v_scale_stride_token, v_scale_stride_head, slots, page_size, Hkv, MEASURED: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, PAIRS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr
):  # fmt: skip
    """Store the keys and values of one new token in its slot of the cache; slots outside the cache are skipped."""
    t = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + t)
    if (slot < 0) | (slot >= slots):
        return
    page, place = slot // page_size, slot % page_size
    # [BLOCK_H]
    h = tl.arange(0, BLOCK_H)
    there = h < Hkv
    k_new_place = t * k_new_stride_token + h.to(tl.int64) * k_new_stride_head
    v_new_place = t * v_new_stride_token + h.to(tl.int64) * v_new_stride_head
    position = tl.load(positions_ptr + t + tl.zeros([BLOCK_H], tl.int32))
    k_rows = load_rotated(
        k_new_ptr, k_new_place, there, position, cos_ptr, cos_stride_row, cos_stride_column, sin_ptr,
        sin_stride_row, sin_stride_column, position_end, 0, D, PAIRS, BLOCK_D
    )  # fmt: skip
    v_rows = load_places(v_new_ptr, v_new_place, there, DV, BLOCK_DV)
    column = tl.arange(0, BLOCK_D)
    k_place = page * k_stride_page + place * k_stride_token + h.to(tl.int64) * k_stride_head
    if k_scale_ptr is not None:
        k_scale_ptr += page * k_scale_stride_page + place * k_scale_stride_token
        scale_ptr = k_scale_ptr + h.to(tl.int64) * k_scale_stride_head
        k_rows = quantised(k_rows, scale_ptr, there, k_ptr.dtype.element_ty, MEASURED)
    inside = there[:, None] & (column < D)[None, :]
    tl.store(k_ptr + k_place[:, None] + column[None, :], k_rows, mask=inside)
    column = tl.arange(0, BLOCK_DV)
    v_place = page * v_stride_page + place * v_stride_token + h.to(tl.int64) * v_stride_head
    if v_scale_ptr is not None:
        v_scale_ptr += page * v_scale_stride_page + place * v_scale_stride_token
        scale_ptr = v_scale_ptr + h.to(tl.int64) * v_scale_stride_head
        v_rows = quantised(v_rows, scale_ptr, there, v_ptr.dtype.element_ty, MEASURED)
    inside = there[:, None] & (column < DV)[None, :]
    tl.store(v_ptr + v_place[:, None] + column[None, :], v_rows, mask=inside)
