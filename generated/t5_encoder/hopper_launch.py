# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_encoder.yaml
#   content hash  b626e7d0f0efe9c0
#   text hash     17676a11f045ada7
#   render with   attnforge render specs/t5_encoder.yaml
"""Launches of the kernels of hopper_backward.py and hopper_wide.py."""

import torch

from . import hopper_backward as kernels
from . import hopper_wide as wide
from . import runtime
from .by_distance import collect_by_distance, find_in_rel_bias_at, make_by_distance, new_table

def differentiate(
    cache, block_m, block_n, warps, stages, q, k, v, entries, in_rel_bias, scale, out, lse, dout, dlse, delta, dq,
    dk, dv, in_rel_bias_at_sum,
):  # fmt: skip
    """Fills in delta, dq, dk and dv, and, if given, in_rel_bias_at_sum."""
    piece = runtime.piece(q, v)
    dq_sum = lse.new_empty(
        q.shape[0] * q.shape[2] * runtime.cdiv(q.shape[1], block_m) * block_m * runtime.cdiv(q.shape[-1], piece) * piece
    )
    taken = lse.new_empty(1 + dq_sum.numel() // (128 * piece), dtype=torch.int32)
    by_distance = make_by_distance(cache, q, k, in_rel_bias)
    by_distance_sums = in_rel_bias_at_entries = in_rel_bias_at_steps = None
    if in_rel_bias_at_sum is not None:
        by_distance_sums = new_table(q, k, torch.zeros)
        in_rel_bias_at_entries, in_rel_bias_at_steps = find_in_rel_bias_at(cache, q, k)
    runtime.launch(
        cache, kernels.prepare, (block_m, block_n), (out, dout, dq_sum, taken, dlse, delta, entries),
        grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], q.shape[1], block_m, k, v),
        from_shapes=lambda: dict(
            out_desc=runtime.tile_source(out, block_m, entries),
            dout_desc=runtime.tile_source(dout, block_m, entries), q_total=q.shape[1], k_total=k.shape[1],
            Hq=q.shape[-2], D=q.shape[-1], BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_DV=runtime.padded_width(v),
            PIECE=runtime.piece(q, v), TILE_AXIS=runtime.tile_axis(q.shape[1], block_m), num_warps=warps,
            num_stages=stages,
        ),
    )  # fmt: skip
    if block_n > 64:
        runtime.launch(
            cache, kernels.backward, (block_m, block_n),
            (q, k, v, dout, dq_sum, lse, delta, dk, dv, taken, entries, float(scale), by_distance,
             by_distance_sums, in_rel_bias_at_steps),
            grid=lambda: runtime.grid(q.shape[0] * k.shape[-2], k.shape[1], block_n, q, dout, dq_sum),
            from_shapes=lambda: dict(
                q_desc=runtime.tile_source(q, block_m), k_desc=runtime.tile_source(k, block_n),
                v_desc=runtime.tile_source(v, block_n), dout_desc=runtime.tile_source(dout, block_m),
                dq_sum_desc=runtime.fragment_source(dq_sum, runtime.piece(q, v)), q_total=q.shape[1],
                k_total=k.shape[1], Hq=q.shape[-2], by_distance_stride_head=runtime.stride(by_distance, 0),
                D=q.shape[-1], DV=v.shape[-1], BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=runtime.padded_width(q),
                BLOCK_DV=runtime.padded_width(v), STAGES=stages, TILE_AXIS=runtime.tile_axis(k.shape[1], block_n),
                num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip
    else:
        runtime.launch(
            cache, wide.backward, (block_m, block_n),
            (q, k, v, dout, dq_sum, lse, delta, dk, dv, taken, entries, float(scale), by_distance),
            grid=lambda: runtime.grid(q.shape[0] * k.shape[-2], k.shape[1], block_n, q, dout, dq_sum),
            from_shapes=lambda: dict(
                q_desc=runtime.tile_source(q, block_m), k_desc=runtime.tile_source(k, block_n),
                v_desc=runtime.tile_source(v, block_n), dout_desc=runtime.tile_source(dout, block_m),
                q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2],
                by_distance_stride_head=runtime.stride(by_distance, 0), D=q.shape[-1], DV=v.shape[-1],
                BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=runtime.padded_width(q), BLOCK_DV=runtime.padded_width(v),
                STAGES=stages, TILE_AXIS=runtime.tile_axis(k.shape[1], block_n), num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip
    runtime.launch(
        cache, kernels.finish, (block_m, block_n), (dq_sum, taken, dq, entries, float(scale)),
        grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], q.shape[1], block_m, k, v),
        from_shapes=lambda: dict(
            q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2], D=q.shape[-1], BLOCK_M=block_m, BLOCK_N=block_n,
            PIECE=runtime.piece(q, v), TILE_AXIS=runtime.tile_axis(q.shape[1], block_m), num_warps=warps,
            num_stages=stages,
        ),
    )  # fmt: skip
    if in_rel_bias_at_sum is not None:
        collect_by_distance(cache, q, k, by_distance_sums, in_rel_bias_at_entries, in_rel_bias_at_sum)
