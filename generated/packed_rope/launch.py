# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_rope.yaml
#   content hash  5438827461da73b3
#   text hash     2b5df1f098363f94
#   render with   attnforge render specs/packed_rope.yaml
"""The operators that PyTorch can differentiate and compile, and what each kernel gets."""

import torch

from . import runtime, kernels, tiles  # runtime first: its error explains a missing triton

LOG2E = kernels.LOG2E.value


def attend(q, k, v, cu_seqlens_q, cu_seqlens_k, cos, sin, positions, max_seqlen_q, max_seqlen_k, scale):
    """Out and LSE of checked arguments; the LSE is in log2 units, and inf for a row without keys."""
    # -inf * 0 would be NaN where the kernels apply the scale
    return _attend(
        q, k, v, cu_seqlens_q, cu_seqlens_k, cos, sin, positions, max_seqlen_q, max_seqlen_k, max(scale, 1e-37)
    )[:2]


def natural(lse, count, cu_seqlens, longest):
    """The LSE for users: in natural-log units, for `count` rows in order, -inf for rows of no sequence."""
    row = torch.arange(count, device=lse.device, dtype=cu_seqlens.dtype)
    b = torch.searchsorted(cu_seqlens, row, right=True, out_int32=True) - 1
    first = cu_seqlens[b].clamp(min=0)
    there = (b >= 0) & (b < cu_seqlens.shape[0] - 1) & (row - first < longest)
    place = row - first + (first // 4 + b) * 4
    lse = lse.index_select(1, place.clamp(0, lse.shape[1] - 1))
    return torch.where(there & (lse != float("inf")), lse / LOG2E, float("-inf"))


@runtime.Operator
def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor | None, max_seqlen_q: int, max_seqlen_k: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    out, lse = _outputs(q, v, cu_seqlens_q)
    if 0 in (out.numel(), k.numel(), max_seqlen_q, max_seqlen_k, cu_seqlens_q.shape[0] - 1):
        return out.zero_(), lse.fill_(float("inf")), runtime.empty_rows(q), runtime.empty_rows(k)
    cache = runtime.LaunchCache.of(
        "attend", q, k, v, cu_seqlens_q, cu_seqlens_k, cos, sin, positions, max_seqlen_q, max_seqlen_k
    )
    q_turned, k_turned = runtime.empty_rows(q), runtime.empty_rows(k)
    _turn(cache, q, k, q_turned, k_turned, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, cos, sin, positions)
    q, k = q_turned, k_turned
    q, k, v = cache.readable(q, k, v)

    def launch(block_m, block_n, warps, stages):
        runtime.launch(
            cache, kernels.forward, (block_m, block_n), (q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, float(scale)),
            grid=lambda: runtime.grid((cu_seqlens_q.shape[0] - 1) * q.shape[-2], max_seqlen_q, block_m, k, v),
            from_shapes=lambda: dict(
                _common(q, k, v, cu_seqlens_q, cos, sin, positions, max_seqlen_q, max_seqlen_k, lse, block_m, block_n),
                TILE_AXIS=runtime.tile_axis(max_seqlen_q, block_m), num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip

    if not runtime.attended(
        cache, tiles, max_seqlen_k, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scale, out, lse
    ):
        runtime.launch_tuned(cache, tiles, "forward", launch, q, v)
    return out, lse, q_turned, k_turned


def _outputs(q, v, cu_seqlens_q):
    rows, heads, _ = q.shape
    # values between sequences belong to none: inf leaves them out of sums, and makes them the same each time
    lse = q.new_full((heads, runtime.aligned_length(rows, cu_seqlens_q)), float("inf"), dtype=torch.float32)
    return q.new_empty(rows, heads, v.shape[-1]), lse


@_attend.register_fake
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, cos, sin, positions, max_seqlen_q, max_seqlen_k, scale):
    return *_outputs(q, v, cu_seqlens_q), runtime.empty_rows(q), runtime.empty_rows(k)


def _common(q, k, v, cu_seqlens_q, cos, sin, positions, max_seqlen_q, max_seqlen_k, lse, block_m, block_n):
    """Values that several kernels share, by parameter: a launch passes on those that its kernel takes."""
    return dict(
        q_desc=runtime.tile_source(q, block_m), k_desc=runtime.tile_source(k, block_n),
        v_desc=runtime.tile_source(v, block_n), q_total=q.shape[0], max_seqlen_q=max_seqlen_q, k_total=k.shape[0],
        max_seqlen_k=max_seqlen_k, Hq=q.shape[-2], sequences=cu_seqlens_q.shape[0] - 1, q_rows=lse.shape[-1],
        GROUP=q.shape[-2] // k.shape[-2], DV=v.shape[-1], BLOCK_M=block_m, BLOCK_N=block_n,
        BLOCK_D=runtime.padded_width(q), BLOCK_DV=runtime.padded_width(v), PRECISION=runtime.precision(q),
        cos_stride_row=cos.stride(0), cos_stride_column=cos.stride(1), sin_stride_row=sin.stride(0),
        sin_stride_column=sin.stride(1), positions_stride_token=runtime.stride(positions, 0),
        position_end=cos.shape[0], D=q.shape[-1], PAIRS=cos.shape[1], BLOCK_PAIRS=runtime.power_of_2(cos.shape[1]),
    )  # fmt: skip


@runtime.Operator
def _differentiate(
    out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, dlse: torch.Tensor | None, wanted: list[bool],
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor | None, max_seqlen_q: int, max_seqlen_k: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    if 0 in (out.numel(), k.numel(), max_seqlen_q, max_seqlen_k, cu_seqlens_q.shape[0] - 1):
        return tuple(x.zero_() for x in runtime.empty_gradients(wanted, q, k, v))
    dq, dk, dv = gradients = runtime.empty_gradients(wanted, q, k, v)
    dlse = None if dlse is None else dlse.contiguous()
    cache = runtime.LaunchCache.of(
        "differentiate", q, k, v, cu_seqlens_q, cu_seqlens_k, cos, sin, positions, max_seqlen_q, max_seqlen_k, out,
        dout, lse, dlse, *wanted,
    )  # fmt: skip
    q, k, v, out, dout = cache.readable(q, k, v, out, dout)
    delta = torch.empty_like(lse)
    if runtime.differentiated(  # on Hopper GPUs, all at once
        cache, tiles, wanted[:3], max_seqlen_k, q, k, v, cu_seqlens_q, cu_seqlens_k, cos, sin, positions,
        max_seqlen_q, max_seqlen_k, scale, out, lse, dout, dlse, delta, dq, dk, dv,
    ):  # fmt: skip
        return tuple(gradients)

    dq = dq if wanted[0] else runtime.empty_like(q)

    def launch(block_m, block_n, warps, stages):
        runtime.launch(
            cache, kernels.backward_dq, (block_m, block_n),
            (q, k, v, out, dout, dq, lse, dlse, delta, cu_seqlens_q, cu_seqlens_k, float(scale), cos, sin, positions),
            grid=lambda: runtime.grid((cu_seqlens_q.shape[0] - 1) * q.shape[-2], max_seqlen_q, block_m, k, v),
            from_shapes=lambda: dict(
                _common(q, k, v, cu_seqlens_q, cos, sin, positions, max_seqlen_q, max_seqlen_k, lse, block_m, block_n),
                out_desc=runtime.tile_source(out, block_m), dout_desc=runtime.tile_source(dout, block_m),
                TILE_AXIS=runtime.tile_axis(max_seqlen_q, block_m), num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip

    runtime.launch_tuned(cache, tiles, "backward_dq", launch, q, v)

    if wanted[1] or wanted[2]:
        dk, dv = (x if x.numel() else runtime.empty_like(y) for x, y in ((dk, k), (dv, v)))

        def launch(block_m, block_n, warps, stages, makes=None):
            runtime.launch(
                cache, kernels.backward_dkv, (block_m, block_n, makes),
                (q, k, v, dout, lse, delta, dk, dv, cu_seqlens_q, cu_seqlens_k, float(scale), cos, sin, positions),
                grid=lambda: runtime.grid((cu_seqlens_q.shape[0] - 1) * k.shape[-2], max_seqlen_k, block_n, q, dout),
                from_shapes=lambda: dict(
                    _common(q, k, v, cu_seqlens_q, cos, sin, positions, max_seqlen_q, max_seqlen_k, lse, block_m, block_n),
                    dout_desc=runtime.tile_source(dout, block_m), lse_desc=runtime.vector_source(lse, block_m),
                    delta_desc=runtime.vector_source(delta, block_m),
                    TILE_AXIS=runtime.tile_axis(max_seqlen_k, block_n), MAKES=makes, num_warps=warps, num_stages=stages,
                ),
            )  # fmt: skip

        runtime.launch_tuned(cache, tiles, "backward_dkv", launch, q, v)
    return tuple(gradients)


@_differentiate.register_fake
def _(out, lse, dout, dlse, wanted, *inputs):
    return tuple(runtime.empty_gradients(wanted, *inputs[:3]))


_attend.register_gradients(_differentiate, learned=(0, 1, 2), tensors=8, remade=2)


def _turn(
    cache,
    q,
    k,
    q_turned,
    k_turned,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    cos,
    sin,
    positions,
    block_t=32,
):
    """Rotates q and k by the angles of their positions."""
    runtime.launch(
        cache, kernels.rotate, (block_t,),
        (q, q_turned, k, k_turned, cos, sin, positions, cu_seqlens_q, cu_seqlens_k),
        grid=lambda: (runtime.cdiv(max(max_seqlen_q, max_seqlen_k),
            block_t) * (cu_seqlens_q.shape[0] - 1) * (q.shape[-2] + k.shape[-2]),),
        from_shapes=lambda: dict(
            q_stride_token=q.stride(0), q_stride_head=q.stride(1), q_stride_column=q.stride(2),
            q_turned_stride_token=q_turned.stride(0), q_turned_stride_head=q_turned.stride(1),
            k_stride_token=k.stride(0), k_stride_head=k.stride(1), k_stride_column=k.stride(2),
            k_turned_stride_token=k_turned.stride(0), k_turned_stride_head=k_turned.stride(1),
            cos_stride_row=cos.stride(0), cos_stride_column=cos.stride(1), sin_stride_row=sin.stride(0),
            sin_stride_column=sin.stride(1), positions_stride_token=runtime.stride(positions, 0),
            position_end=cos.shape[0], q_total=q.shape[0], max_seqlen_q=max_seqlen_q, k_total=k.shape[0],
            max_seqlen_k=max_seqlen_k, Hq=q.shape[-2], Hkv=k.shape[-2],
            tiles=runtime.cdiv(max(max_seqlen_q, max_seqlen_k), block_t), PAIRS=cos.shape[1], BLOCK_T=block_t,
            BLOCK_PAIRS=runtime.power_of_2(cos.shape[1]), num_warps=8 if q.shape[-1] > 256 else 4,
        ),
    )  # fmt: skip
