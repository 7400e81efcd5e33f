# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/alibi.yaml
#   content hash  dd8d90b24d6faace
#   text hash     19490470e4dc0984
#   render with   attnforge render specs/alibi.yaml
"""The operators that PyTorch can differentiate and compile, and what each kernel gets."""

import torch

from . import runtime, kernels, padding, tiles  # runtime first: its error explains a missing triton
from .vanishing import find_horizons

LOG2E = kernels.LOG2E.value


def attend(q, k, v, entries, in_slopes, scale):
    """Out and LSE of checked arguments; the LSE is in log2 units, and inf for a row without keys."""
    # -inf * 0 would be NaN where the kernels apply the scale
    return _attend(q, k, v, entries, in_slopes, max(scale, 1e-30))


def natural(lse):
    """The LSE for users: in natural-log units, -inf for a row without keys."""
    return torch.where(lse == float("inf"), float("-inf"), lse / LOG2E)


@runtime.Operator
def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, entries: torch.Tensor | None, in_slopes: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    out, lse = _outputs(q, v, entries)
    if out.numel() == 0 or k.numel() == 0:
        return out.zero_(), lse.fill_(float("inf"))
    cache = runtime.LaunchCache.of("attend", q, k, v, entries, in_slopes)
    padding.clear(cache, entries, [out])
    q, k, v = cache.readable(q, k, v)
    horizons = find_horizons(cache, q, k, entries, in_slopes, scale)

    def launch(block_m, block_n, warps, stages):
        runtime.launch(
            cache, kernels.forward, (block_m, block_n),
            (q, k, v, out, lse, entries, float(scale), in_slopes, horizons),
            grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], q.shape[1], block_m, k, v),
            from_shapes=lambda: dict(
                _common(q, k, v, entries, in_slopes, block_m, block_n),
                TILE_AXIS=runtime.tile_axis(q.shape[1], block_m), num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip

    if not runtime.attended(cache, tiles, k.shape[1], q, k, v, entries, in_slopes, horizons, scale, out, lse):
        runtime.launch_tuned(cache, tiles, "forward", launch, q, v)
    return out, lse


def _outputs(q, v, entries):
    batch, rows, heads, _ = q.shape
    return runtime.outputs(q, (batch, rows, heads, v.shape[-1]), (batch, heads, rows), entries)


@_attend.register_fake
def _(q, k, v, entries, in_slopes, scale):
    return _outputs(q, v, entries)


def _common(q, k, v, entries, in_slopes, block_m, block_n):
    """Values that several kernels share, by parameter: a launch passes on those that its kernel takes."""
    return dict(
        q_desc=runtime.tile_source(q, block_m, entries), k_desc=runtime.tile_source(k, block_n, entries),
        v_desc=runtime.tile_source(v, block_n, entries), q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2],
        in_slopes_stride_head=runtime.stride(in_slopes, 0), GROUP=q.shape[-2] // k.shape[-2], DV=v.shape[-1],
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=runtime.padded_width(q), BLOCK_DV=runtime.padded_width(v),
        PRECISION=runtime.precision(q), D=q.shape[-1],
    )  # fmt: skip


@runtime.Operator
def _differentiate(
    out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, dlse: torch.Tensor | None, wanted: list[bool],
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, entries: torch.Tensor | None, in_slopes: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    if out.numel() == 0 or k.numel() == 0:
        return tuple(x.zero_() for x in runtime.empty_gradients(wanted, q, k, v, in_slopes))
    dq, dk, dv = gradients = runtime.empty_gradients(wanted, q, k, v)
    gradients += [q.new_empty(0) for _ in wanted[3:]]
    dlse = None if dlse is None else dlse.contiguous()
    cache = runtime.LaunchCache.of(
        "differentiate", q, k, v, entries, in_slopes, out, dout, lse, dlse, *wanted,
    )  # fmt: skip
    q, k, v, out, dout = cache.readable(q, k, v, out, dout)
    padding.clear(cache, entries, [dq], [dk, dv])
    horizons = find_horizons(cache, q, k, entries, in_slopes, scale, back=True)
    delta = torch.empty_like(lse)
    if not wanted[3] and runtime.differentiated(  # on Hopper GPUs, all at once
        cache, tiles, wanted[:3], k.shape[1], q, k, v, entries, in_slopes, horizons, scale, out, lse, dout, dlse,
        delta, dq, dk, dv,
    ):  # fmt: skip
        return tuple(gradients)

    dq = dq if wanted[0] else runtime.empty_like(q)
    in_slopes_sum = None

    def launch(block_m, block_n, warps, stages):
        nonlocal in_slopes_sum
        in_slopes_sum = lse.new_zeros(q.shape[0], q.shape[-2], runtime.cdiv(q.shape[1], block_m)) if wanted[3] else None
        runtime.launch(
            cache, kernels.backward_dq, (block_m, block_n),
            (q, k, v, out, dout, dq, lse, dlse, delta, entries, float(scale), in_slopes, horizons, in_slopes_sum),
            grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], q.shape[1], block_m, k, v),
            from_shapes=lambda: dict(
                _common(q, k, v, entries, in_slopes, block_m, block_n),
                out_desc=runtime.tile_source(out, block_m, entries),
                dout_desc=runtime.tile_source(dout, block_m, entries),
                TILE_AXIS=runtime.tile_axis(q.shape[1], block_m), num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip

    runtime.launch_tuned(cache, tiles, "backward_dq", launch, q, v)

    if wanted[1] or wanted[2]:
        dk, dv = (x if x.numel() else runtime.empty_like(y) for x, y in ((dk, k), (dv, v)))

        def launch(block_m, block_n, warps, stages, makes=None):
            runtime.launch(
                cache, kernels.backward_dkv, (block_m, block_n, makes),
                (q, k, v, dout, lse, delta, dk, dv, entries, float(scale), in_slopes, horizons),
                grid=lambda: runtime.grid(q.shape[0] * k.shape[-2], k.shape[1], block_n, q, dout),
                from_shapes=lambda: dict(
                    _common(q, k, v, entries, in_slopes, block_m, block_n),
                    dout_desc=runtime.tile_source(dout, block_m, entries),
                    lse_desc=runtime.vector_source(lse, block_m if entries is None else None),
                    delta_desc=runtime.vector_source(delta, block_m if entries is None else None),
                    TILE_AXIS=runtime.tile_axis(k.shape[1], block_n), MAKES=makes, num_warps=warps, num_stages=stages,
                ),
            )  # fmt: skip

        runtime.launch_tuned(cache, tiles, "backward_dkv", launch, q, v)
    if wanted[3]:
        total = in_slopes_sum
        gradients[3] = total.sum((0, 2)).sum_to_size(in_slopes.shape).to(in_slopes.dtype)
    return tuple(gradients)


@_differentiate.register_fake
def _(out, lse, dout, dlse, wanted, *inputs):
    return tuple(runtime.empty_gradients(wanted, *(inputs[i] for i in (0, 1, 2, 4))))


_attend.register_gradients(_differentiate, learned=(0, 1, 2, 4), tensors=5)
