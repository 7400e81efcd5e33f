# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/kerple.yaml
#   content hash  968845a8b30226d6
#   text hash     3f2539586ca5a84b
#   render with   attnforge render specs/kerple.yaml
"""Parts of scores that depend on the distance from key to query alone, evaluated once for each distance and head.

Kernels read a value for each score instead of computing it.

Symbols
    by_distance, by_distance_ptr
                  part of the scores by the distance from key to query: a row for each head; distance 0 is at the
                  pointer
    distance      how far a key is before a query
    first, last   the first distance, and the one after the last
    place         index of a distance of the head
    value         what is stored for a distance
"""

import torch
import triton
import triton.language as tl

from . import runtime
from .kernels import softplus


@triton.jit(do_not_specialize=["k_total", "first", "last"])
def fill_by_distance(
    by_distance_ptr, in_decay_ptr, in_width_ptr, in_decay_stride_head, in_width_stride_head, k_total,
    by_distance_stride_head, first, last, BLOCK: tl.constexpr
):  # fmt: skip
    """Store a part of scores at a block of distances, for a head."""
    h = tl.program_id(1)
    # [BLOCK]
    distance = first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.cast(h, tl.int64) * by_distance_stride_head + distance
    in_decay = tl.load(in_decay_ptr + tl.cast(h, tl.int64) * in_decay_stride_head).to(tl.float32)
    in_width = tl.load(in_width_ptr + tl.cast(h, tl.int64) * in_width_stride_head).to(tl.float32)
    # [BLOCK]
    value = softplus(in_decay) * tl.log(1 + softplus(in_width) * distance)
    # only rows past the last query are further away, and their scores have to be finite
    # [BLOCK]
    value = tl.where(distance < k_total, value, 0.0)
    tl.store(by_distance_ptr + place, value, mask=distance < last)


def distances(q, k):
    """The first distance from key to query in any tile, and the one after the last: tiles reach beyond all rows."""
    # multiples of 16, for which kernels are compiled once
    queries, keys = (rows // 16 * 16 + 272 for rows in (q.shape[1], k.shape[1]))
    return -max(queries, keys), keys


def new_table(q, k, new=torch.empty, dtype=torch.float32):
    """A tensor by distance: a row for each head, whose value at distance 0 is the tensor's first one."""
    first, last = distances(q, k)
    return new(q.shape[-2], last - first, dtype=dtype, device=q.device)[:, -first:]


def make_by_distance(cache, q, k, in_decay, in_width):
    """A part of scores, by distance."""
    first, last = distances(q, k)
    by_distance = new_table(q, k)
    runtime.launch(
        cache, fill_by_distance, (), (by_distance, in_decay, in_width),
        grid=lambda: (runtime.cdiv(last - first, 1024), q.shape[-2]),
        from_shapes=lambda: dict(
            in_decay_stride_head=runtime.stride(in_decay, 0), in_width_stride_head=runtime.stride(in_width, 0),
            k_total=k.shape[1], by_distance_stride_head=runtime.stride(by_distance, 0), first=first, last=last,
            BLOCK=1024,
        ),
    )  # fmt: skip
    return by_distance
