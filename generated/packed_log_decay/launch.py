# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_log_decay.yaml
#   content hash  574996e4fa2a6110
#   text hash     e0ce3fb0ce7ff7b8
#   render with   attnforge render specs/packed_log_decay.yaml
"""The operators that PyTorch can differentiate and compile, and what each kernel gets."""

import torch

from . import runtime, kernels, tiles  # runtime first: its error explains a missing triton
from .vanishing import shorten

LOG2E = kernels.LOG2E.value


def attend(q, k, v, cu_seqlens_q, cu_seqlens_k, in_log_decay, max_seqlen_q, max_seqlen_k, scale):
    """Out and LSE of checked arguments; the LSE is in log2 units, and inf for a row without keys."""
    # -inf * 0 would be NaN where the kernels apply the scale
    return _attend(q, k, v, cu_seqlens_q, cu_seqlens_k, in_log_decay, max_seqlen_q, max_seqlen_k, max(scale, 1e-30))[:2]


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
    in_log_decay: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int, scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    out, lse = _outputs(q, v, cu_seqlens_q)
    if 0 in (out.numel(), k.numel(), max_seqlen_q, max_seqlen_k, cu_seqlens_q.shape[0] - 1):
        return out.zero_(), lse.fill_(float("inf")), _empty_sums(in_log_decay.permute(1, 0), cu_seqlens_k)
    cache = runtime.LaunchCache.of(
        "attend", q, k, v, cu_seqlens_q, cu_seqlens_k, in_log_decay, max_seqlen_q, max_seqlen_k
    )
    q, k, v = cache.readable(q, k, v)
    in_log_decay_sums = _sums(in_log_decay.permute(1, 0), cu_seqlens_k, -4096.0)
    shorten(cache, in_log_decay_sums, q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scale)

    def launch(block_m, block_n, warps, stages):
        runtime.launch(
            cache, kernels.forward, (block_m, block_n),
            (q, k, v, in_log_decay_sums, out, lse, cu_seqlens_q, cu_seqlens_k, float(scale), in_log_decay_sums),
            grid=lambda: runtime.grid((cu_seqlens_q.shape[0] - 1) * q.shape[-2], max_seqlen_q, block_m, k, v),
            from_shapes=lambda: dict(
                _common(q, k, v, cu_seqlens_q, in_log_decay_sums, max_seqlen_q, max_seqlen_k, lse, block_m, block_n),
                in_log_decay_desc=runtime.vector_source(in_log_decay_sums, block_n),
                TILE_AXIS=runtime.tile_axis(max_seqlen_q, block_m), num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip

    if not runtime.attended(
        cache,
        tiles,
        max_seqlen_k,
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        in_log_decay_sums,
        max_seqlen_q,
        max_seqlen_k,
        scale,
        out,
        lse,
    ):
        runtime.launch_tuned(cache, tiles, "forward", launch, q, v)
    return out, lse, in_log_decay_sums


def _outputs(q, v, cu_seqlens_q):
    rows, heads, _ = q.shape
    # values between sequences belong to none: inf leaves them out of sums, and makes them the same each time
    lse = q.new_full((heads, runtime.aligned_length(rows, cu_seqlens_q)), float("inf"), dtype=torch.float32)
    return q.new_empty(rows, heads, v.shape[-1]), lse


@_attend.register_fake
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, in_log_decay, max_seqlen_q, max_seqlen_k, scale):
    return *_outputs(q, v, cu_seqlens_q), _empty_sums(in_log_decay.permute(1, 0), cu_seqlens_k)


def _common(q, k, v, cu_seqlens_q, in_log_decay_sums, max_seqlen_q, max_seqlen_k, lse, block_m, block_n):
    """Values that several kernels share, by parameter: a launch passes on those that its kernel takes."""
    return dict(
        q_desc=runtime.tile_source(q, block_m), k_desc=runtime.tile_source(k, block_n),
        v_desc=runtime.tile_source(v, block_n), q_total=q.shape[0], max_seqlen_q=max_seqlen_q, k_total=k.shape[0],
        max_seqlen_k=max_seqlen_k, Hq=q.shape[-2], sequences=cu_seqlens_q.shape[0] - 1, q_rows=lse.shape[-1],
        in_log_decay_stride_head=runtime.stride(in_log_decay_sums, -3),
        in_log_decay_stride_token=runtime.stride(in_log_decay_sums, -1),
        in_log_decay_stride_part=in_log_decay_sums.stride(-2), GROUP=q.shape[-2] // k.shape[-2], DV=v.shape[-1],
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=runtime.padded_width(q), BLOCK_DV=runtime.padded_width(v),
        PRECISION=runtime.precision(q), k_rows=in_log_decay_sums.shape[-1], D=q.shape[-1],
    )  # fmt: skip


@runtime.Operator
def _differentiate(
    out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, dlse: torch.Tensor | None, wanted: list[bool],
    in_log_decay_sums: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor, in_log_decay: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int, scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    if 0 in (out.numel(), k.numel(), max_seqlen_q, max_seqlen_k, cu_seqlens_q.shape[0] - 1):
        return tuple(x.zero_() for x in runtime.empty_gradients(wanted, q, k, v, in_log_decay))
    dq, dk, dv = gradients = runtime.empty_gradients(wanted, q, k, v)
    gradients += [q.new_empty(0) for _ in wanted[3:]]
    dlse = None if dlse is None else dlse.contiguous()
    # whether descriptors can read values at the positions of queries: they start at multiples of 16 bytes
    level = cu_seqlens_q.data_ptr() == cu_seqlens_k.data_ptr()
    cache = runtime.LaunchCache.of(
        "differentiate", q, k, v, cu_seqlens_q, cu_seqlens_k, in_log_decay, max_seqlen_q, max_seqlen_k, out, dout,
        lse, in_log_decay_sums, dlse, level, *wanted,
    )  # fmt: skip
    q, k, v, out, dout = cache.readable(q, k, v, out, dout)
    delta = torch.empty_like(lse)
    in_log_decay_k_sum = lse.new_zeros(q.shape[1], in_log_decay_sums.shape[-1]) if wanted[3] else None
    in_log_decay_q_sum = lse.new_zeros(q.shape[1], in_log_decay_sums.shape[-1]) if wanted[3] else None
    # on Hopper GPUs
    at_once = runtime.differentiated(
        cache, tiles, wanted[:3], max_seqlen_k, q, k, v, cu_seqlens_q, cu_seqlens_k, in_log_decay_sums,
        max_seqlen_q, max_seqlen_k, scale, out, lse, dout, dlse, delta, dq, dk, dv, in_log_decay_k_sum,
        in_log_decay_q_sum,
    )  # fmt: skip
    if not at_once:
        dq = dq if wanted[0] else runtime.empty_like(q)

        def launch(block_m, block_n, warps, stages):
            runtime.launch(
                cache, kernels.backward_dq, (block_m, block_n),
                (q, k, v, out, dout, in_log_decay_sums, dq, lse, dlse, delta, cu_seqlens_q, cu_seqlens_k,
                 float(scale), in_log_decay_sums, in_log_decay_q_sum),
                grid=lambda: runtime.grid((cu_seqlens_q.shape[0] - 1) * q.shape[-2], max_seqlen_q, block_m, k, v),
                from_shapes=lambda: dict(
                    _common(q, k, v, cu_seqlens_q, in_log_decay_sums, max_seqlen_q, max_seqlen_k, lse, block_m, block_n),
                    out_desc=runtime.tile_source(out, block_m), dout_desc=runtime.tile_source(dout, block_m),
                    in_log_decay_desc=runtime.vector_source(in_log_decay_sums, block_n),
                    TILE_AXIS=runtime.tile_axis(max_seqlen_q, block_m), num_warps=warps, num_stages=stages,
                ),
            )  # fmt: skip

        runtime.launch_tuned(cache, tiles, "backward_dq", launch, q, v)

        if wanted[1] or wanted[2] or wanted[3]:
            dk, dv = (x if x.numel() else runtime.empty_like(y) for x, y in ((dk, k), (dv, v)))

            def launch(block_m, block_n, warps, stages, makes=None):
                runtime.launch(
                    cache, kernels.backward_dkv, (block_m, block_n, makes),
                    (q, k, v, dout, lse, delta, in_log_decay_sums, dk, dv, cu_seqlens_q, cu_seqlens_k, float(scale),
                     in_log_decay_sums, in_log_decay_k_sum if makes != "dv" else None),
                    grid=lambda: runtime.grid((cu_seqlens_q.shape[0] - 1) * k.shape[-2], max_seqlen_k, block_n, q,
                        dout),
                    from_shapes=lambda: dict(
                        _common(q, k, v, cu_seqlens_q, in_log_decay_sums, max_seqlen_q, max_seqlen_k, lse, block_m,
                            block_n),
                        dout_desc=runtime.tile_source(dout, block_m), lse_desc=runtime.vector_source(lse, block_m),
                        delta_desc=runtime.vector_source(delta, block_m),
                        in_log_decay_desc=runtime.vector_source(in_log_decay_sums, block_m if level else None),
                        TILE_AXIS=runtime.tile_axis(max_seqlen_k, block_n), MAKES=makes, num_warps=warps,
                        num_stages=stages,
                    ),
                )  # fmt: skip

            runtime.launch_tuned(cache, tiles, "backward_dkv", launch, q, v)
    if wanted[3]:
        total = in_log_decay_q_sum + in_log_decay_k_sum
        total = _summed_back(
            total.sum_to_size(in_log_decay_sums[..., 0, :].shape).contiguous(),
            in_log_decay.permute(1, 0),
            cu_seqlens_k,
            -4096.0,
        )
        gradients[3] = total.permute(1, 0).contiguous()
    return tuple(gradients)


@_differentiate.register_fake
def _(out, lse, dout, dlse, wanted, in_log_decay_sums, *inputs):
    return tuple(runtime.empty_gradients(wanted, *(inputs[i] for i in (0, 1, 2, 5))))


_attend.register_gradients(_differentiate, learned=(0, 1, 2, 5), tensors=6)


def _empty_sums(x, cu_seqlens_k):
    """Room for the four parts of x's running sums; each sequence begins at a multiple of 4."""
    *lead, tokens = x.shape
    return x.new_zeros(*lead, 4, runtime.aligned_length(tokens, cu_seqlens_k), dtype=torch.float32)


def _sums(x, cu_seqlens_k, reset):
    """The running sums of x over its last axis, as kernels read them; a value of `reset` or less begins a document."""
    sums, block = _empty_sums(x, cu_seqlens_k), 64 if runtime.INTERPRETED else 1024
    cache = runtime.LaunchCache.of("scan", x, cu_seqlens_k, reset)
    runtime.launch(
        cache, kernels.scan, (block,), (x, sums, cu_seqlens_k),
        grid=lambda: ((cu_seqlens_k.shape[0] - 1) * x.shape[-2],),
        from_shapes=lambda: dict(
            x_stride_head=x.stride(0), x_stride_token=x.stride(1), k_total=x.shape[-1], k_rows=sums.shape[-1],
            heads=x.shape[-2], RESET=reset, BLOCK=block,
        ),
    )  # fmt: skip
    return sums


def _summed_back(dsums, x, cu_seqlens_k, reset):
    """The gradient of x from that of its running sums."""
    dx, block = x.new_zeros(x.shape), 64 if runtime.INTERPRETED else 1024
    cache = runtime.LaunchCache.of("scan_back", x, dsums, cu_seqlens_k, reset)
    runtime.launch(
        cache, kernels.scan_back, (block,), (x, dsums, dx, cu_seqlens_k),
        grid=lambda: ((cu_seqlens_k.shape[0] - 1) * x.shape[-2],),
        from_shapes=lambda: dict(
            x_stride_head=x.stride(0), x_stride_token=x.stride(1), k_total=x.shape[-1], k_rows=dsums.shape[-1],
            heads=x.shape[-2], RESET=reset, BLOCK=block,
        ),
    )  # fmt: skip
    return dx
