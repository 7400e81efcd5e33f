# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_encoder.yaml
#   content hash  5378196164b2dfb7
#   text hash     c9e397bb8fa3fa6e
#   render with   attnforge render specs/t5_encoder.yaml
"""Parts of scores that depend on the distance from key to query alone, evaluated once for each distance and head.

Kernels read a value for each score instead of computing it. For gradients of tables, they read which entry a score
has as well. Those for Hopper GPUs add up dS by distance; these sums are then added up by entry.

Symbols
    by_distance, by_distance_ptr
                  part of the scores by the distance from key to query: a row for each head; distance 0 is at the
                  pointer
    in_rel_bias_at_entries_ptr, in_rel_bias_at_entries
                  index of the entry that in_rel_bias_at is, likewise
    by_distance_sums_ptr, by_distance_sums
                  sums of dS, likewise
    distance      how far a key is before a query
    first, last   the first distance, and the one after the last
    place         index of a distance of the head
    value         what is stored for a distance
    entry         index of the entry that is read at a distance
"""

import torch
import triton
import triton.language as tl

from . import runtime
from .kernels import whole_floor, within


@triton.jit(do_not_specialize=["k_total", "first", "last"])
def fill_by_distance(
    by_distance_ptr, in_rel_bias_ptr, in_rel_bias_stride_head, in_rel_bias_stride_entry, k_total,
    by_distance_stride_head, first, last, BLOCK: tl.constexpr
):  # fmt: skip
    """Store a part of scores at a block of distances, for a head."""
    h = tl.program_id(1)
    # [BLOCK]
    distance = first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.cast(h, tl.int64) * by_distance_stride_head + distance
    in_rel_bias_base = in_rel_bias_ptr + tl.cast(h, tl.int64) * in_rel_bias_stride_head
    in_rel_bias_at_entry = within(
        tl.where(-distance > 0, 16, 0)
        + tl.where(
            tl.abs(distance) < 8,
            tl.abs(distance),
            tl.minimum(15, 8 + whole_floor(tl.log(tl.abs(distance) / 8) / 2.772588722239781 * 8 + 1e-05)),
        ),
        32,
    )
    in_rel_bias_at = tl.load(in_rel_bias_base + in_rel_bias_at_entry.to(tl.int64) * in_rel_bias_stride_entry).to(
        tl.float32
    )
    # [BLOCK]
    value = in_rel_bias_at
    # only rows past the last query are further away, and their scores have to be finite
    # [BLOCK]
    value = tl.where(distance < k_total, value, 0.0)
    tl.store(by_distance_ptr + place, value, mask=distance < last)


@triton.jit(do_not_specialize=["first", "last"])
def find_in_rel_bias_at_entries(
    in_rel_bias_at_entries_ptr, in_rel_bias_at_entries_stride_head, first, last, BLOCK: tl.constexpr
):  # fmt: skip
    """Store the indices of in_rel_bias_at at a block of distances, for a head."""
    h = tl.program_id(1)
    # [BLOCK]
    distance = first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.cast(h, tl.int64) * in_rel_bias_at_entries_stride_head + distance
    in_rel_bias_at_entry = within(
        tl.where(-distance > 0, 16, 0)
        + tl.where(
            tl.abs(distance) < 8,
            tl.abs(distance),
            tl.minimum(15, 8 + whole_floor(tl.log(tl.abs(distance) / 8) / 2.772588722239781 * 8 + 1e-05)),
        ),
        32,
    )
    tl.store(in_rel_bias_at_entries_ptr + place, in_rel_bias_at_entry, mask=distance < last)


@triton.jit(do_not_specialize=["first", "last"])
def add_up_by_distance(
    by_distance_sums_ptr, in_rel_bias_at_entries_ptr, in_rel_bias_at_sum_ptr, by_distance_sums_stride_head, first,
    last, BLOCK: tl.constexpr
):  # fmt: skip
    """Add the sums of a block of distances to the entries that a head reads there."""
    h = tl.program_id(1)
    # [BLOCK]
    distance = first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.cast(h, tl.int64) * by_distance_sums_stride_head + distance
    # [BLOCK]
    sums = tl.load(by_distance_sums_ptr + place, mask=distance < last, other=0.0)
    entry = tl.load(in_rel_bias_at_entries_ptr + place, mask=distance < last, other=0)
    tl.atomic_add(in_rel_bias_at_sum_ptr + h * 32 + entry, sums, mask=sums != 0, sem="relaxed")


def distances(q, k):
    """The first distance from key to query in any tile, and the one after the last: tiles reach beyond all rows."""
    # multiples of 16, for which kernels are compiled once
    queries, keys = (rows // 16 * 16 + 272 for rows in (q.shape[1], k.shape[1]))
    return -max(queries, keys), keys


def new_table(q, k, new=torch.empty, dtype=torch.float32):
    """A tensor by distance: a row for each head, whose value at distance 0 is the tensor's first one."""
    first, last = distances(q, k)
    return new(q.shape[-2], last - first, dtype=dtype, device=q.device)[:, -first:]


def make_by_distance(cache, q, k, in_rel_bias):
    """A part of scores, by distance."""
    first, last = distances(q, k)
    by_distance = new_table(q, k)
    runtime.launch(
        cache, fill_by_distance, (), (by_distance, in_rel_bias),
        grid=lambda: (runtime.cdiv(last - first, 1024), q.shape[-2]),
        from_shapes=lambda: dict(
            in_rel_bias_stride_head=runtime.stride(in_rel_bias, 0),
            in_rel_bias_stride_entry=runtime.stride(in_rel_bias, 1), k_total=k.shape[1],
            by_distance_stride_head=runtime.stride(by_distance, 0), first=first, last=last, BLOCK=1024,
        ),
    )  # fmt: skip
    return by_distance


def find_in_rel_bias_at(cache, q, k):
    """The index of the entry that in_rel_bias_at is, by distance, and how often it has changed up to each distance."""
    first, last = distances(q, k)
    indices = torch.empty(q.shape[-2], last - first, dtype=torch.int32, device=q.device)
    in_rel_bias_at_entries = indices[:, -first:]
    runtime.launch(
        cache, find_in_rel_bias_at_entries, (), (in_rel_bias_at_entries,),
        grid=lambda: (runtime.cdiv(last - first, 1024), q.shape[-2]),
        from_shapes=lambda: dict(
            in_rel_bias_at_entries_stride_head=runtime.stride(in_rel_bias_at_entries, 0), first=first, last=last,
            BLOCK=1024,
        ),
    )  # fmt: skip
    steps = (indices != indices.roll(1, 1)).cumsum(1, dtype=torch.int32)
    return in_rel_bias_at_entries, steps[:, -first:]


def collect_by_distance(cache, q, k, by_distance_sums, in_rel_bias_at_entries, in_rel_bias_at_sum):
    """Adds sums of dS by distance to the gradient of the entries that are read there."""
    first, last = distances(q, k)
    runtime.launch(
        cache, add_up_by_distance, (), (by_distance_sums, in_rel_bias_at_entries, in_rel_bias_at_sum),
        grid=lambda: (runtime.cdiv(last - first, 1024), q.shape[-2]),
        from_shapes=lambda: dict(
            by_distance_sums_stride_head=runtime.stride(by_distance_sums, 0), first=first, last=last, BLOCK=1024,
        ),
    )  # fmt: skip
