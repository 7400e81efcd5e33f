# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_encoder.yaml
#   content hash  8f2c309cedc880a4
#   text hash     37204406e78f1abb
#   render with   attnforge render specs/t5_encoder.yaml
"""The operators that PyTorch can differentiate and compile, and what each kernel gets."""

import torch

from . import runtime, kernels, padding, tiles  # runtime first: its error explains a missing triton
from .by_distance import find_in_rel_bias_at, make_by_distance

LOG2E = kernels.LOG2E.value


def attend(q, k, v, entries, in_rel_bias, scale):
    """Out and LSE of checked arguments; the LSE is in log2 units, and inf for a row without keys."""
    return _attend(q, k, v, entries, in_rel_bias, scale)


def natural(lse):
    """The LSE for users: in natural-log units, -inf for a row without keys."""
    return torch.where(lse == float("inf"), float("-inf"), lse / LOG2E)


@runtime.Operator
def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, entries: torch.Tensor | None, in_rel_bias: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    out, lse = _outputs(q, v, entries)
    if out.numel() == 0 or k.numel() == 0:
        return out.zero_(), lse.fill_(float("inf"))
    cache = runtime.LaunchCache.of("attend", q, k, v, entries, in_rel_bias)
    padding.clear(cache, entries, [out])
    q, k, v = cache.readable(q, k, v)

    def launch(block_m, block_n, warps, stages):
        by_distance = make_by_distance(cache, q, k, in_rel_bias)
        runtime.launch(
            cache, kernels.forward, (block_m, block_n), (q, k, v, out, lse, entries, float(scale), by_distance),
            grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], q.shape[1], block_m, k, v),
            from_shapes=lambda: dict(
                _common(q, k, v, entries, by_distance, block_m, block_n),
                TILE_AXIS=runtime.tile_axis(q.shape[1], block_m), num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip

    if not runtime.attended(cache, tiles, k.shape[1], q, k, v, entries, in_rel_bias, scale, out, lse):
        runtime.launch_tuned(cache, tiles, "forward", launch, q, v)
    return out, lse


def _outputs(q, v, entries):
    batch, rows, heads, _ = q.shape
    return runtime.outputs(q, (batch, rows, heads, v.shape[-1]), (batch, heads, rows), entries)


@_attend.register_fake
def _(q, k, v, entries, in_rel_bias, scale):
    return _outputs(q, v, entries)


def _common(q, k, v, entries, by_distance, block_m, block_n):
    """Values that several kernels share, by parameter: a launch passes on those that its kernel takes."""
    return dict(
        q_desc=runtime.tile_source(q, block_m, entries), k_desc=runtime.tile_source(k, block_n, entries),
        v_desc=runtime.tile_source(v, block_n, entries), q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2],
        by_distance_stride_head=runtime.stride(by_distance, 0), DV=v.shape[-1], BLOCK_M=block_m, BLOCK_N=block_n,
        BLOCK_D=runtime.padded_width(q), BLOCK_DV=runtime.padded_width(v), PRECISION=runtime.precision(q),
        D=q.shape[-1],
    )  # fmt: skip


@runtime.Operator
def _differentiate(
    out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, dlse: torch.Tensor | None, wanted: list[bool],
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, entries: torch.Tensor | None, in_rel_bias: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    if out.numel() == 0 or k.numel() == 0:
        return tuple(x.zero_() for x in runtime.empty_gradients(wanted, q, k, v, in_rel_bias))
    dq, dk, dv = gradients = runtime.empty_gradients(wanted, q, k, v)
    gradients += [q.new_empty(0) for _ in wanted[3:]]
    dlse = None if dlse is None else dlse.contiguous()
    cache = runtime.LaunchCache.of(
        "differentiate", q, k, v, entries, in_rel_bias, out, dout, lse, dlse, *wanted,
    )  # fmt: skip
    q, k, v, out, dout = cache.readable(q, k, v, out, dout)
    padding.clear(cache, entries, [dq], [dk, dv])
    delta = torch.empty_like(lse)
    in_rel_bias_at_sum = lse.new_zeros(1, q.shape[-2], 1, 32) if wanted[3] else None
    # on Hopper GPUs
    at_once = (not wanted[3] or q.shape[-1] <= 128) and runtime.differentiated(
        cache, tiles, wanted[:3], k.shape[1], q, k, v, entries, in_rel_bias, scale, out, lse, dout, dlse, delta,
        dq, dk, dv, in_rel_bias_at_sum,
    )  # fmt: skip
    if not at_once:
        by_distance = make_by_distance(cache, q, k, in_rel_bias)
        in_rel_bias_at_entries, in_rel_bias_at_steps = find_in_rel_bias_at(cache, q, k) if wanted[3] else (None, None)
        dq = dq if wanted[0] else runtime.empty_like(q)
        in_rel_bias_at_sum = None

        def launch(block_m, block_n, warps, stages):
            nonlocal in_rel_bias_at_sum
            in_rel_bias_at_sum = (
                lse.new_zeros(q.shape[0], q.shape[-2], runtime.cdiv(q.shape[1], block_m), 32) if wanted[3] else None
            )
            runtime.launch(
                cache, kernels.backward_dq, (block_m, block_n),
                (q, k, v, out, dout, dq, lse, dlse, delta, entries, float(scale), by_distance, in_rel_bias_at_sum,
                 in_rel_bias_at_entries, in_rel_bias_at_steps),
                grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], q.shape[1], block_m, k, v),
                from_shapes=lambda: dict(
                    _common(q, k, v, entries, by_distance, block_m, block_n),
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
                    (q, k, v, dout, lse, delta, dk, dv, entries, float(scale), by_distance),
                    grid=lambda: runtime.grid(q.shape[0] * k.shape[-2], k.shape[1], block_n, q, dout),
                    from_shapes=lambda: dict(
                        _common(q, k, v, entries, by_distance, block_m, block_n),
                        dout_desc=runtime.tile_source(dout, block_m, entries),
                        lse_desc=runtime.vector_source(lse, block_m if entries is None else None),
                        delta_desc=runtime.vector_source(delta, block_m if entries is None else None),
                        TILE_AXIS=runtime.tile_axis(k.shape[1], block_n), MAKES=makes, num_warps=warps,
                        num_stages=stages,
                    ),
                )  # fmt: skip

            runtime.launch_tuned(cache, tiles, "backward_dkv", launch, q, v)
    if wanted[3]:
        total = in_rel_bias_at_sum
        gradients[3] = total.sum((0, 2)).sum_to_size(in_rel_bias.shape).to(in_rel_bias.dtype)
    return tuple(gradients)


@_differentiate.register_fake
def _(out, lse, dout, dlse, wanted, *inputs):
    return tuple(runtime.empty_gradients(wanted, *(inputs[i] for i in (0, 1, 2, 4))))


_attend.register_gradients(_differentiate, learned=(0, 1, 2, 4), tensors=5)
