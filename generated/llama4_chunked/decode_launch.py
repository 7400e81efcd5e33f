# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama4_chunked.yaml
#   content hash  6858147c0b5ed664
#   text hash     d2a2fc6245c5dcbe
#   render with   attnforge render specs/llama4_chunked.yaml
"""Launches of the decoding kernels, and the tiles, which decide which keys are summed together."""

import torch

from . import runtime, decode_arguments  # runtime first: it explains a missing triton
from . import decode_kernels as kernels

# for heads up to a size: keys of a tile; (least programs per multiprocessor, warps, stages); and keys of a split. The
# first entry is for tiles of FEW rows and short splits, the second for splits of 512 keys or more, if a call asks for
# them, the last for tiles of up to 64 rows. The bits of a row depend on nothing else, but above a head size of 256 on
# the GPU: partial sums follow the first number of warps, whatever number a program has
SPLITS_16BIT = {
    64: (
        (128, ((0, 4, 3), (3.5, 2, 2)), 512),
        (32, ((0, 4, 3), (1.75, 2, 3), (7, 2, 2)), 1024),
        (128, ((0, 4, 3),), 1024),
    ),
    128: (
        (64, ((0, 4, 3), (3.5, 2, 2)), 256),
        (32, ((0, 4, 3), (1.75, 2, 3), (3.5, 2, 2), (7, 1, 2)), 1024),
        (64, ((0, 4, 3),), 1024),
    ),
    256: ((32, ((0, 4, 3), (3.5, 2, 2)), 256), (32, ((0, 4, 3), (2.25, 2, 2)), 1024), (16, ((0, 4, 4),), 1024)),
    512: ((16, ((0, 4, 3),), 256), (16, ((0, 4, 3),), 1024), (16, ((0, 8, 3),), 1024)),
}
SPLITS_FLOAT8 = {
    64: (
        (128, ((0, 4, 3), (3.5, 2, 3)), 512),
        (32, ((0, 4, 3), (1.5, 2, 3), (3.5, 1, 3)), 1024),
        (128, ((0, 4, 3),), 1024),
    ),
    128: ((64, ((0, 4, 3), (3.5, 2, 3)), 256), (64, ((0, 4, 3), (1.5, 2, 3)), 1024), (64, ((0, 4, 3),), 1024)),
    256: ((32, ((0, 4, 3),), 256), (32, ((0, 4, 3), (1.5, 2, 3)), 1024), (32, ((0, 4, 3),), 1024)),
    512: ((16, ((0, 4, 3),), 256), (16, ((0, 4, 3),), 1024), (16, ((0, 8, 3),), 1024)),
}
SPLITS_FP32 = {
    64: ((32, ((0, 2, 4),), 512), (32, ((0, 2, 4),), 1024), (32, ((0, 4, 4),), 2048)),
    128: ((32, ((0, 4, 3),), 256), (32, ((0, 4, 3),), 1024), (32, ((0, 8, 3),), 1024)),
    256: ((16, ((0, 4, 3),), 256), (16, ((0, 4, 3),), 1024), (16, ((0, 8, 3),), 1024)),
    512: ((16, ((0, 8, 2),), 256), (16, ((0, 8, 2),), 1024), (16, ((0, 8, 2),), 1024)),
}
WHOLE = 2**30  # keys of a split, more than any sequence has
FEW = 16  # rows of a tile that become the columns of products: the GPU computes 16 rows by 8 columns at a time
CHUNK = 8  # splits that are joined one after the other
PAIRED = 7  # from this many programs per multiprocessor on, a program reads two key heads
TOGETHER, MANY_ROWS = 4, 2048  # query heads that one program joins if splits are few, and from how many rows on


def split_of(q, k, v, longest, split_size):
    """Rows and keys of a tile, warps and stages by programs per multiprocessor, and keys of a split.

    They are for calls with up to `longest` new tokens of a sequence.
    """
    rows = longest * (q.shape[-2] // k.shape[-2])
    table = SPLITS_FP32 if q.dtype == torch.float32 else SPLITS_FLOAT8 if k.element_size() == 1 else SPLITS_16BIT
    size = next(size for size in table if max(q.shape[-1], v.shape[-1]) <= size)
    fewest = 8 if runtime.INTERPRETED or runtime.capability(q.device) > (0, 0) else FEW  # others compute 16 columns
    block_m = min(max(fewest, runtime.power_of_2(rows)), FEW if size > 256 and not _many(q) else 64)
    if block_m > FEW and _many(q) and (size <= 256 or k.element_size() > 1):
        # products have 64 rows there; with wider float8 heads, fewer rows leave more registers
        block_m = 64
    short, long, many = table[size]
    block_n, ways, keys = many if block_m > FEW else long if split_size and split_size >= 512 else short
    if runtime.INTERPRETED:
        block_n, ways, keys = 32, ((0, 4, 1),), 64 if rows <= FEW else 256
    return block_m, block_n, ways, keys_of_split(q, rows, longest, split_size, keys)


def keys_of_split(q, rows, longest, split_size, keys):
    """Keys of a split: as the call asks, or else `keys`."""
    # enough rows to fill a GPU: each program visits all keys
    return WHOLE if rows > 256 and longest * q.shape[-2] > 2048 else split_size or keys


def _many(q):
    """Whether products have 64 rows, whose accumulator fits in registers even with more than 256 columns."""
    return q.dtype != torch.float32 and runtime.architecture(q.device) == "sm_90"


def count_splits(keys, longest, max_seqlen_k, reach, first_keys):
    """How many splits of a sequence new tokens may see, at least one; a range may begin and end within a split."""
    seen = runtime.cdiv(first_keys, keys) + runtime.cdiv(reach + longest - 1, keys) + 1
    return max(min(seen, runtime.cdiv(max_seqlen_k, keys)), 1)


def beside(ways, programs, device):
    """Warps and stages of a program, by the number of programs."""
    each = 0 if runtime.INTERPRETED else programs / runtime.multiprocessors(device)
    return max(way for way in ways if each >= way[0])[1:]


def scaled_by_head(k_scale):
    """Whether float8 keys have one scale for all keys of a head."""
    return k_scale is not None and k_scale.shape[1] * k_scale.shape[2] == 1


def side_by_side(q, k, v, k_scale, rows, block_m, block_n, programs):
    """How many key heads a program reads, and the rows of its tile; bits do not depend on it.

    Two if many programs would read adjacent rows of 64 bytes: memory is faster with 128 bytes at a time.
    """
    width, by_key = k.shape[-1], k_scale is not None and not scaled_by_head(k_scale)
    short = k.element_size() == 1 and q.element_size() == 2 and width == 64 == v.shape[-1] == k.stride(2) == v.stride(2)
    least = PAIRED * (1 if runtime.INTERPRETED else runtime.multiprocessors(q.device))
    if not short or by_key or k.shape[2] % 2 or 2 * rows > FEW or block_n > 32 or programs < least:
        return 1, block_m
    return 2, max(block_m, runtime.power_of_2(2 * rows))


def in_twos(q, v):
    """Whether values are float8 and can be read two columns at a time; their keys are added in another order."""
    if v.element_size() != 1 or q.dtype == torch.float32 or v.shape[-1] % 2 or v.shape[-1] <= 16:
        return False
    places = v.data_ptr(), *v.stride()[:-1]
    return not any(x % 2 for x in places) and (runtime.INTERPRETED or runtime.capability(q.device) >= (8, 9))


def tile_of_join(splits, q, v):
    """How many chunks of splits, columns of out and query heads a program joins at a time; bits do not depend on it.

    As many as 4 warps hold; for many rows, each with few splits, several heads, as many as one warp holds.
    """
    chunks = min(runtime.power_of_2(runtime.cdiv(splits, CHUNK)), 32)
    columns, heads = min(runtime.padded_width(v), 1024 // chunks), q.shape[1]
    apart = chunks > 1 or columns > 512 or q.shape[0] * heads < MANY_ROWS
    return chunks, columns, 1 if apart else min(heads & -heads, TOGETHER, 512 // columns)


def rows_of_last(splits, rows, v, warps):
    """How many rows the program that stores the last of few parts joins, and how many columns of out at a time.

    0 rows if `join_splits` joins them: registers do not hold all parts of many splits or rows at once.
    """
    rows, width = runtime.power_of_2(rows), runtime.padded_width(v)
    columns = min(width, 256 * warps // rows)
    return (rows, columns) if splits <= CHUNK and rows <= FEW and width <= 4 * columns else (0, 0)


def size_of_parts(q, v, splits):
    """How many float32 values the parts of all splits take: for each a row of v's width, and its LSE."""
    return q.numel() // q.shape[-1] * splits * (v.shape[-1] + 1)


def workspace_size(q, k, v, longest, max_seqlen_k, split_size, reach, first_keys):
    """How many float32 values the parts of all splits take."""
    keys = split_of(q, k, v, longest, split_size)[-1]
    splits = count_splits(keys, longest, max_seqlen_k, reach, first_keys)
    return size_of_parts(q, v, splits)


@runtime.on_its_device
def attend(
    q, call, k, v, out, seq_lens, page_table, k_starts, cu_seqlens_q, cos, sin, positions, k_scale, v_scale, scale,
    parts, lse
):  # fmt: skip
    """Fills in out and lse, the latter in natural-log units; `call` has what follows from shapes."""
    max_seqlen_k, reach, first_keys = call.max_seqlen_k, *call.seen
    split_values = (q, k, v, seq_lens, cu_seqlens_q, page_table, k_starts, parts, float(scale), k_scale, v_scale, out,
        lse, cos, sin, positions, max_seqlen_k, reach, first_keys)  # fmt: skip
    join_values = (parts, seq_lens, cu_seqlens_q, out, lse, max_seqlen_k, reach, first_keys)  # fmt: skip
    kind = runtime.precision(q), lse is None, runtime.planned.depth == 0
    cache, counted = call.launches.get(kind, (None, 0))
    if cache is not None:
        # counts are the last argument
        known = (*split_values, runtime.counters(counted, q.device))
        if runtime.launch_again(cache, known, join_values):
            return
    if seq_lens.shape[0] == 0 or out.numel() == 0:
        out.zero_()
        if lse is not None:
            lse.fill_(float("-inf"))
        return
    q, k_scale, v_scale = (
        q.reshape(-1, *q.shape[-2:]),
        decode_arguments.by_place(k_scale),
        decode_arguments.by_place(v_scale),
    )
    positions = None if positions is None else positions.reshape(-1)
    longest, lse_strides, sequences = call.longest, call.lse_strides, seq_lens.shape[0]
    rows = longest * (q.shape[1] // k.shape[2])
    block_m, block_n, ways, split_size = split_of(q, k, v, longest, call.split_size)
    splits = count_splits(split_size, longest, max_seqlen_k, reach, first_keys)
    programs = splits * runtime.cdiv(rows, block_m) * k.shape[2] * sequences
    warps, stages = beside(ways, programs, q.device)
    chunks, columns, together = tile_of_join(splits, q, v)
    heads, block_m = side_by_side(q, k, v, k_scale, rows, block_m, block_n, programs)
    # if the last program to store a part joins all parts, no second kernel is needed. That takes counters, which
    # outlive the call: a compiler that plans memory has no place for them
    joined, at_a_time = rows_of_last(splits, rows * heads, v, warps)
    if runtime.planned.depth:
        joined = 0
    counted = sequences * k.shape[2] // heads if joined else 0
    split_values += (runtime.counters(counted, q.device),)
    cache = runtime.LaunchCache.of("decode", q, *call.shapes, longest, splits, split_size, block_n, joined, lse is None)

    def launch_split(stages):
        runtime.launch(
            cache, kernels.attend_split, (block_m, block_n), split_values,
            grid=lambda: (splits * runtime.cdiv(rows * heads, block_m) * (k.shape[2] // heads), sequences),
            from_shapes=lambda: dict(
                lse_stride_sequence=lse_strides[0], lse_stride_head=lse_strides[1], cos_stride_row=cos.stride(0),
                cos_stride_column=cos.stride(1), sin_stride_row=sin.stride(0), sin_stride_column=sin.stride(1),
                position_end=cos.shape[0], q_stride_token=q.stride(0), q_stride_head=q.stride(1),
                k_stride_page=k.stride(0), k_stride_token=k.stride(1), k_stride_head=k.stride(2),
                v_stride_page=v.stride(0), v_stride_token=v.stride(1), v_stride_head=v.stride(2),
                k_scale_stride_sequence=runtime.stride(k_scale, 0), k_scale_stride_page=runtime.stride(k_scale, 1),
                k_scale_stride_token=runtime.stride(k_scale, 2), k_scale_stride_head=runtime.stride(k_scale, 3),
                v_scale_stride_sequence=runtime.stride(v_scale, 0), v_scale_stride_page=runtime.stride(v_scale, 1),
                v_scale_stride_token=runtime.stride(v_scale, 2), v_scale_stride_head=runtime.stride(v_scale, 3),
                pages_stride_sequence=0 if page_table is None else page_table.stride(0), k_places=k.shape[1],
                tokens=q.shape[0], longest=longest, Hq=q.shape[1], splits=splits, split_size=split_size,
                GROUP=q.shape[-2] // k.shape[-2], PAGE=1 if page_table is None else k.shape[1], D=q.shape[-1],
                DV=v.shape[-1], PAIRS=cos.shape[1], BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=runtime.padded_width(q),
                BLOCK_DV=runtime.padded_width(v), PRECISION=runtime.precision(q), TURNED=block_m <= FEW,
                SUMS=min(8 * ways[0][1], block_n // 2) if block_m <= FEW else 8,
                IN_TWOS=block_m <= FEW and in_twos(q, v), KV_HEADS=heads, BY_HEAD=scaled_by_head(k_scale),
                FAR=max(k.stride(1), v.stride(1)) >= 2**24, OVERLAP=runtime.overlaps(q.device), CHUNK=CHUNK,
                JOINED=joined, COLUMNS=at_a_time, num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip

    runtime.launch_with_room(launch_split, stages)
    if not joined:
        runtime.launch(
            cache, kernels.join_splits, (), join_values,
            grid=lambda: (longest * (runtime.padded_width(v) // columns), q.shape[1] // together, sequences),
            from_shapes=lambda: dict(
                lse_stride_sequence=lse_strides[0], lse_stride_head=lse_strides[1], tokens=q.shape[0], longest=longest,
                Hq=q.shape[1], splits=splits, split_size=split_size, DV=v.shape[-1], CHUNK=CHUNK, CHUNKS=chunks,
                COLUMNS=columns, TOGETHER=together, OVERLAP=runtime.overlaps(q.device), num_warps=min(chunks, 4),
                num_stages=2,
            ),
        )  # fmt: skip
    call.launches[kind] = cache, counted


@runtime.on_its_device
def append(k_new, v_new, k, v, slot_mapping, cos, sin, positions, k_scale, v_scale, measured):
    """Writes rows to their slots of a cache; for float8, scales of each row are `measured`, or given."""
    cache = runtime.LaunchCache.of(
        "append", k_new, v_new, k, v, slot_mapping, cos, sin, positions, k_scale, v_scale, measured
    )
    runtime.launch(
        cache, kernels.append_rows, (), (k_new, v_new, k, v, slot_mapping, k_scale, v_scale, cos, sin, positions),
        grid=lambda: (k_new.shape[0],),
        from_shapes=lambda: dict(
            cos_stride_row=cos.stride(0), cos_stride_column=cos.stride(1), sin_stride_row=sin.stride(0),
            sin_stride_column=sin.stride(1), position_end=cos.shape[0], k_new_stride_token=k_new.stride(0),
            k_new_stride_head=k_new.stride(1), v_new_stride_token=v_new.stride(0), v_new_stride_head=v_new.stride(1),
            k_stride_page=k.stride(0), k_stride_token=k.stride(1), k_stride_head=k.stride(2),
            v_stride_page=v.stride(0), v_stride_token=v.stride(1), v_stride_head=v.stride(2),
            k_scale_stride_page=runtime.stride(k_scale, 1), k_scale_stride_token=runtime.stride(k_scale, 2),
            k_scale_stride_head=runtime.stride(k_scale, 3), v_scale_stride_page=runtime.stride(v_scale, 1),
            v_scale_stride_token=runtime.stride(v_scale, 2), v_scale_stride_head=runtime.stride(v_scale, 3),
            slots=k.shape[0] * k.shape[1], page_size=k.shape[1], Hkv=k.shape[2], MEASURED=measured, D=k.shape[-1],
            DV=v.shape[-1], PAIRS=cos.shape[1], BLOCK_H=runtime.power_of_2(k.shape[2]),
            BLOCK_D=runtime.power_of_2(k.shape[-1]), BLOCK_DV=runtime.power_of_2(v.shape[-1]), num_warps=4,
        ),
    )  # fmt: skip
