# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/forgetting_transformer.yaml
#   content hash  fd70d02ba2c893f9
#   text hash     86751237e93bc1b2
#   render with   attnforge render specs/forgetting_transformer.yaml
"""Launches of the kernels of hopper_backward.py."""

import torch

from . import hopper_backward as kernels
from . import runtime

def differentiate(
    cache, block_m, block_n, warps, stages, q, k, v, entries, in_log_decay_sums, scale, out, lse, dout, dlse, delta,
    dq, dk, dv, in_log_decay_k_sum, in_log_decay_q_sum,
):  # fmt: skip
    """Fills in delta, dq, dk and dv, and, if given, in_log_decay_k_sum, in_log_decay_q_sum."""
    piece = runtime.piece(q, v)
    dq_sum = lse.new_empty(
        q.shape[0] * q.shape[2] * runtime.cdiv(q.shape[1], block_m) * block_m * runtime.cdiv(q.shape[-1], piece) * piece
    )
    taken = lse.new_empty(1 + dq_sum.numel() // (128 * piece), dtype=torch.int32)
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
    runtime.launch(
        cache, kernels.backward, (block_m, block_n),
        (q, k, v, dout, dq_sum, in_log_decay_sums, lse, delta, dk, dv, taken, entries, float(scale),
         in_log_decay_sums, in_log_decay_k_sum, in_log_decay_q_sum),
        grid=lambda: runtime.grid(q.shape[0] * k.shape[-2], k.shape[1], block_n, q, dout, dq_sum),
        from_shapes=lambda: dict(
            q_desc=runtime.tile_source(q, block_m), k_desc=runtime.tile_source(k, block_n),
            v_desc=runtime.tile_source(v, block_n), dout_desc=runtime.tile_source(dout, block_m),
            dq_sum_desc=runtime.fragment_source(dq_sum, runtime.piece(q, v)),
            in_log_decay_desc=runtime.vector_source(in_log_decay_sums, block_m), q_total=q.shape[1],
            k_total=k.shape[1], Hq=q.shape[-2], in_log_decay_stride_batch=runtime.stride(in_log_decay_sums, 0),
            in_log_decay_stride_head=runtime.stride(in_log_decay_sums, -3),
            in_log_decay_stride_token=runtime.stride(in_log_decay_sums, -1),
            in_log_decay_stride_part=in_log_decay_sums.stride(-2), GROUP=q.shape[-2] // k.shape[-2], D=q.shape[-1],
            DV=v.shape[-1], BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=runtime.padded_width(q),
            BLOCK_DV=runtime.padded_width(v), STAGES=stages, TILE_AXIS=runtime.tile_axis(k.shape[1], block_n),
            turns_to=1536 if entries is None else 0, num_warps=warps, num_stages=stages,
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
