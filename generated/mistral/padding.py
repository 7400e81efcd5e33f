# Written by attnforge. Do not edit: it is the same in every package.
#
#   made from     templates/host/padding.py.jinja
#   content hash  0d775e835a382902
#   text hash     b703ff0f5d051d59
#   render with   attnforge render SPEC
"""Which rows of a dense batch count, in the form that kernels take; none of it waits for the GPU.

Kernels take a tensor `entries`, int32 (B, 5), for each batch entry:

    0, 1   the first row of q that counts, and how many do
    2, 3   the first row of k and v that counts, and how many do
    4      the position of that row of q; the position of that row of k is 0
"""

import torch
import triton
import triton.language as tl

from . import runtime  # its error explains a missing triton


@triton.jit(do_not_specialize=["first_position", "batch", "q_total", "k_total"])
def note_entries(
    k_lens_ptr, k_starts_ptr, q_starts_ptr, entries_ptr, first_position, q_total, k_total, batch, k_lens_stride,
    k_starts_stride, q_starts_stride, TOKENS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Store the numbers of BLOCK batch entries. If only tokens count, queries at no key's position do not."""
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = b < batch
    first, past = tl.zeros([BLOCK], tl.int32), tl.full([BLOCK], k_total, tl.int32)
    if k_starts_ptr is not None:
        first = tl.load(k_starts_ptr + b * k_starts_stride, mask=inside, other=0)
        first = tl.minimum(tl.maximum(first, 0), k_total)
    if k_lens_ptr is not None:
        past = tl.load(k_lens_ptr + b * k_lens_stride, mask=inside, other=0)
        past = tl.minimum(tl.maximum(past, 0), k_total)
    count = tl.maximum(past - first, 0)
    position, skipped, rows = count - q_total, tl.zeros([BLOCK], tl.int32), tl.full([BLOCK], q_total, tl.int32)
    if q_starts_ptr is not None:
        position = tl.load(q_starts_ptr + b * q_starts_stride, mask=inside, other=0)
        position = tl.minimum(tl.maximum(position, -(2**28)), 2**28).to(tl.int32)
    elif first_position is not None:
        position = tl.full([BLOCK], first_position, tl.int32)
    if TOKENS:
        skipped = tl.minimum(tl.maximum(-position, 0), q_total)
        rows = tl.maximum(tl.minimum(count - position, q_total) - skipped, 0)
    entry_ptr = entries_ptr + 5 * b
    tl.store(entry_ptr, skipped, mask=inside)
    tl.store(entry_ptr + 1, rows, mask=inside)
    tl.store(entry_ptr + 2, first, mask=inside)
    tl.store(entry_ptr + 3, count, mask=inside)
    tl.store(entry_ptr + 4, position + skipped, mask=inside)


def find_entries(q, k, k_lens, k_starts, q_start, tokens):
    """The tensor `entries` of a call. Rows that a tensor lacks do not count.

    `tokens`: only queries at a key's position count, as is the case in any call with `q_start`.
    """
    q_starts, q_start = (q_start, None) if isinstance(q_start, torch.Tensor) else (None, q_start)
    return _find_entries(q, k, k_lens, k_starts, q_starts, q_start, tokens or not (q_starts is q_start is None))


@runtime.Operator
def _find_entries(
    q: torch.Tensor, k: torch.Tensor, k_lens: torch.Tensor | None, k_starts: torch.Tensor | None,
    q_starts: torch.Tensor | None, q_start: int | None, tokens: bool,
) -> torch.Tensor:  # fmt: skip
    entries = q.new_empty(q.shape[0], 5, dtype=torch.int32)
    if q.shape[0]:
        told = k_lens, k_starts, q_starts
        cache = runtime.LaunchCache.of("find_entries", entries, *told, q_start is None, tokens)
        runtime.launch(
            cache, note_entries, (), (*told, entries, q_start, q.shape[1], k.shape[1]),
            grid=lambda: (runtime.cdiv(q.shape[0], 128),),
            from_shapes=lambda: dict(
                batch=q.shape[0], k_lens_stride=runtime.stride(k_lens, 0), k_starts_stride=runtime.stride(k_starts, 0),
                q_starts_stride=runtime.stride(q_starts, 0), TOKENS=tokens, BLOCK=128,
            ),
        )  # fmt: skip
    return entries


@_find_entries.register_fake
def _(q, k, *_):
    return q.new_empty(q.shape[0], 5, dtype=torch.int32)


@triton.jit(do_not_specialize=["count", "width", "chunks"])
def clear_chunk(x_ptr, entries_ptr, count, width, chunks, OF_KEYS: tl.constexpr, BLOCK: tl.constexpr):
    """Store zeros in the rows of x that do not count, among BLOCK consecutive values of a batch entry.

    An entry has `count` rows of `width` values each, in so many chunks.
    """
    b, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    entry_ptr = entries_ptr + 5 * b + 2 * OF_KEYS
    offset, length = tl.load(entry_ptr), tl.load(entry_ptr + 1)
    begin = chunk.to(tl.int64) * BLOCK
    first_row = begin // width
    if (first_row >= offset) & ((begin + BLOCK - 1) // width < offset + length):
        return
    place = (begin - first_row * width).to(tl.int32) + tl.arange(0, BLOCK)
    row = first_row.to(tl.int32) + place // width
    left_out = (row < offset) | (row >= offset + length)
    x_ptr += (b.to(tl.int64) * count + first_row) * width
    tl.store(x_ptr + place, tl.zeros([BLOCK], x_ptr.dtype.element_ty), mask=left_out & (row < count))


def clear(cache, entries, queries, keys=()):
    """Clears the rows that do not count in tensors (B, T, H, D) of queries and of keys: no other kernel writes them."""
    for i, x in enumerate((*queries, *keys) if entries is not None else ()):
        if x.numel():
            _clear(cache, entries, x, i, int(i >= len(queries)))


def _clear(cache, entries, x, i, of_keys):
    width, block = x.stride(1), 4096
    chunks = runtime.cdiv(x.shape[1] * width, block)
    runtime.launch(
        cache, clear_chunk, (i,), (x, entries),
        grid=lambda: (x.shape[0] * chunks,),
        from_shapes=lambda: dict(count=x.shape[1], width=width, chunks=chunks, OF_KEYS=of_keys, BLOCK=block),
    )  # fmt: skip


@triton.jit
def count_keys(entries_ptr, number, count, tiles, reach, BEHIND: tl.constexpr, BLOCK_M: tl.constexpr):
    """One more than the number of keys that tiles of queries may see; 0 for those without a query that counts."""
    q_start = number % tiles * BLOCK_M
    entry_ptr, inside = entries_ptr + 5 * (number // tiles), number < count
    q_len = tl.load(entry_ptr + 1, mask=inside, other=0)
    k_len = tl.load(entry_ptr + 3, mask=inside, other=0)
    first = tl.load(entry_ptr + 4, mask=inside, other=0) + q_start
    past = tl.minimum(first + tl.minimum(BLOCK_M, q_len - q_start), k_len) if BEHIND else k_len
    keys = tl.maximum(past - tl.maximum(first - reach, 0), 0)
    return tl.where(q_start < q_len, keys + 1, 0)


@triton.jit(do_not_specialize=["count", "tiles", "together", "room", "reach"])
def rank_tiles(
    entries_ptr, ranked_ptr, count, tiles, together, room, reach, BEHIND: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    """Store the rank of BLOCK of all `count` tiles of queries; in `room` places behind them, tiles beyond all rows."""
    own = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    work = count_keys(entries_ptr, own, count, tiles, reach, BEHIND, BLOCK_M)
    group = tl.where(work > 0, own // together, count)
    rank, there = tl.zeros([BLOCK], tl.int32), 0
    for start in tl.range(0, count, BLOCK):
        other = start + tl.arange(0, BLOCK)
        more = count_keys(entries_ptr, other, count, tiles, reach, BEHIND, BLOCK_M)
        first = tl.where(more > 0, other // together, count)
        ahead = (more[None, :] == work[:, None]) & (other[None, :] < own[:, None])
        ahead |= more[None, :] > work[:, None]
        ahead = (first[None, :] < group[:, None]) | ((first[None, :] == group[:, None]) & ahead)
        rank += tl.sum(ahead.to(tl.int32), 1)
        there += tl.sum((more > 0).to(tl.int32), 0)
    tl.store(ranked_ptr, there, mask=tl.program_id(0) == 0)
    place, inside = ranked_ptr + 1 + 2 * tl.where(own < count, rank, own), own < count + room
    tl.store(place, tl.where(work > 0, own // tiles, 0), mask=inside)
    tl.store(place + 1, tl.where(work > 0, own % tiles, 2**20), mask=inside)


def rank(cache, entries, q, k, v, block_m, behind, reach=2**28):
    """How many tiles of queries have rows that count, then entry and tile of each; None if ranks would not pay off.

    Groups of entries follow one another, and in each, tiles that see many keys come first. `behind`: no query sees a
    later key; `reach`: how many keys before its own position it may see.
    """
    tiles, programs = runtime.cdiv(q.shape[1], block_m), runtime.multiprocessors(q.device)
    count, room = q.shape[0] * tiles, programs + 1
    # the time of ranking grows with the square of the count
    if entries is None or q.shape[0] == 1 or count > 8192 or count * q.shape[2] <= 2 * programs:
        return None
    ranked = entries.new_empty(1 + 2 * (count + room))
    runtime.launch(
        cache, rank_tiles, (block_m,), (entries, ranked),
        grid=lambda: (runtime.cdiv(count + room, 64),),
        from_shapes=lambda: dict(
            count=count, tiles=tiles, together=tiles * entries_together(q, k, v, block_m), room=room, reach=reach,
            BEHIND=behind, BLOCK_M=block_m, BLOCK=64,
        ),
    )  # fmt: skip
    return ranked


def entries_together(q, k, v, block_m):
    """How many batch entries are ranked together: those whose keys and values stay cached, or all of short ones.

    If a program has few tiles of a group of entries, its first and last ones leave programs with unequal work.
    """
    batch, queries, heads, _ = q.shape
    if runtime.cdiv(queries, block_m) * heads < 7 * runtime.multiprocessors(q.device):
        return batch
    sizes = runtime.grid(batch * heads, queries, block_m, k, v)
    return max(sizes[1 - runtime.tile_axis(queries, block_m)] // heads, 1)
