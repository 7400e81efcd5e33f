# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/flash2_strided_k.yaml
#   content hash  9b8f2abe47599a88
#   text hash     d78ca01f3b11f9a8
#   render with   attnforge render specs/flash2_strided_k.yaml
"""The operators that PyTorch can compile, and what each kernel gets."""

import torch

from . import runtime, kernels, padding, tiles  # runtime first: its error explains a missing triton

LOG2E = kernels.LOG2E.value


def attend(q, k, v, entries, scale):
    """Out and LSE of checked arguments; the LSE is in log2 units, and inf for a row without keys."""
    # -inf * 0 would be NaN where the kernels apply the scale
    return _attend(q, k, v, entries, max(scale, 1e-37))


def natural(lse):
    """The LSE for users: in natural-log units, -inf for a row without keys."""
    return torch.where(lse == float("inf"), float("-inf"), lse / LOG2E)


@runtime.Operator
def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, entries: torch.Tensor | None, scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    out, lse = _outputs(q, v, entries)
    if out.numel() == 0 or k.numel() == 0:
        return out.zero_(), lse.fill_(float("inf"))
    cache = runtime.LaunchCache.of("attend", q, k, v, entries)
    padding.clear(cache, entries, [out])
    q, k, v = cache.readable(q, k, v)

    def launch(block_m, block_n, warps, stages):
        runtime.launch(
            cache, kernels.forward, (block_m, block_n), (q, v, k, out, lse, entries, float(scale)),
            grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], q.shape[1], block_m, k, v),
            from_shapes=lambda: dict(
                q_desc=runtime.tile_source(q, block_m, entries), v_desc=runtime.tile_source(v, block_n, entries),
                k_stride_batch=runtime.stride_in_steps(k, 0), k_stride_row=runtime.stride_in_steps(k, 1),
                k_stride_head=runtime.stride_in_steps(k, 2), q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2],
                GROUP=q.shape[-2] // k.shape[-2], D=q.shape[-1], DV=v.shape[-1], BLOCK_M=block_m, BLOCK_N=block_n,
                BLOCK_D=runtime.padded_width(q), BLOCK_DV=runtime.padded_width(v), PRECISION=runtime.precision(q),
                TILE_AXIS=runtime.tile_axis(q.shape[1], block_m), num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip

    runtime.launch_tuned(cache, tiles, "forward", launch, q, v)
    return out, lse


def _outputs(q, v, entries):
    batch, rows, heads, _ = q.shape
    return runtime.outputs(q, (batch, rows, heads, v.shape[-1]), (batch, heads, rows), entries)


@_attend.register_fake
def _(q, k, v, entries, scale):
    return _outputs(q, v, entries)
