# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/differential.yaml
#   content hash  7ac980e00d116602
#   text hash     a342396575dcd023
#   render with   attnforge render specs/differential.yaml
"""Launches of the kernels of hopper_backward.py and hopper_wide.py."""

import torch

from . import hopper_backward as kernels
from . import hopper_wide as wide
from . import runtime

def differentiate(
    cache, block_m, block_n, warps, stages, q, k, v, entries, cos, sin, positions, scale, out, lse, dout, dlse,
    delta, dq, dk, dv,
):  # fmt: skip
    """Fills in delta, dq, dk and dv."""
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
    if block_n > 64:
        runtime.launch(
            cache, kernels.backward, (block_m, block_n),
            (q, k, v, dout, dq_sum, lse, delta, dk, dv, taken, entries, float(scale)),
            grid=lambda: runtime.grid(q.shape[0] * k.shape[-2], k.shape[1], block_n, q, dout, dq_sum),
            from_shapes=lambda: dict(
                q_desc=runtime.tile_source(q, block_m), k_desc=runtime.tile_source(k, block_n),
                v_desc=runtime.tile_source(v, block_n), dout_desc=runtime.tile_source(dout, block_m),
                dq_sum_desc=runtime.fragment_source(dq_sum, runtime.piece(q, v)), q_total=q.shape[1],
                k_total=k.shape[1], Hq=q.shape[-2], GROUP=q.shape[-2] // k.shape[-2], D=q.shape[-1], DV=v.shape[-1],
                BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=runtime.padded_width(q), BLOCK_DV=runtime.padded_width(v),
                STAGES=stages, TILE_AXIS=runtime.tile_axis(k.shape[1], block_n), num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip
    else:
        runtime.launch(
            cache, wide.backward, (block_m, block_n),
            (q, k, v, dout, dq_sum, lse, delta, dk, dv, taken, entries, float(scale)),
            grid=lambda: runtime.grid(q.shape[0] * k.shape[-2], k.shape[1], block_n, q, dout, dq_sum),
            from_shapes=lambda: dict(
                q_desc=runtime.tile_source(q, block_m), k_desc=runtime.tile_source(k, block_n),
                v_desc=runtime.tile_source(v, block_n), dout_desc=runtime.tile_source(dout, block_m),
                q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2], GROUP=q.shape[-2] // k.shape[-2],
                D=q.shape[-1], DV=v.shape[-1], BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=runtime.padded_width(q),
                BLOCK_DV=runtime.padded_width(v), STAGES=stages, TILE_AXIS=runtime.tile_axis(k.shape[1], block_n),
                num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip
    runtime.launch(
        cache, kernels.finish, (block_m, block_n), (dq_sum, taken, dq, entries, float(scale), cos, sin, positions),
        grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], q.shape[1], block_m, k, v),
        from_shapes=lambda: dict(
            q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2], cos_stride_row=cos.stride(0),
            cos_stride_column=cos.stride(1), sin_stride_row=sin.stride(0), sin_stride_column=sin.stride(1),
            positions_stride_batch=runtime.stride(positions, 0),
            positions_stride_token=runtime.stride(positions, 1), position_end=cos.shape[0], D=q.shape[-1],
            PAIRS=cos.shape[1], BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_PAIRS=runtime.power_of_2(cos.shape[1]),
            PIECE=runtime.piece(q, v), TILE_AXIS=runtime.tile_axis(q.shape[1], block_m), num_warps=warps,
            num_stages=stages,
        ),
    )  # fmt: skip
    runtime.launch(
        cache, kernels.turn_back, (block_m, block_n), (dk, entries, cos, sin, positions),
        grid=lambda: runtime.grid(q.shape[0] * k.shape[-2], k.shape[1], block_n, q, dout),
        from_shapes=lambda: dict(
            q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2], cos_stride_row=cos.stride(0),
            cos_stride_column=cos.stride(1), sin_stride_row=sin.stride(0), sin_stride_column=sin.stride(1),
            positions_stride_batch=runtime.stride(positions, 0),
            positions_stride_token=runtime.stride(positions, 1), position_end=cos.shape[0],
            GROUP=q.shape[-2] // k.shape[-2], D=q.shape[-1], PAIRS=cos.shape[1], BLOCK_N=block_n,
            BLOCK_PAIRS=runtime.power_of_2(cos.shape[1]), TILE_AXIS=runtime.tile_axis(k.shape[1], block_n),
            num_warps=warps, num_stages=stages,
        ),
    )  # fmt: skip
