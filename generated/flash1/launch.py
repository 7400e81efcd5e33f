# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/flash1.yaml
#   content hash  d7aff65d5742166a
#   text hash     405c14ff3af3d7b1
#   render with   attnforge render specs/flash1.yaml
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
    # in float32: in 16 bits, sums would be rounded at every step
    acc = lse.new_zeros(*lse.shape, v.shape[-1])
    m = lse.new_full(lse.shape, float("-inf"))
    l = lse.new_zeros(lse.shape)

    def launch(block_m, block_n, warps, stages):
        runtime.launch(
            cache, kernels.forward, (block_m, block_n), (q, k, v, acc, m, l, out, lse, entries, float(scale)),
            grid=lambda: (q.shape[0] * q.shape[-2],),
            from_shapes=lambda: dict(
                q_desc=runtime.tile_source(q, block_m, entries), k_desc=runtime.tile_source(k, block_n, entries),
                v_desc=runtime.tile_source(v, block_n, entries), q_total=q.shape[1], k_total=k.shape[1],
                Hq=q.shape[-2], GROUP=q.shape[-2] // k.shape[-2], DV=v.shape[-1], BLOCK_M=block_m, BLOCK_N=block_n,
                BLOCK_D=runtime.padded_width(q), BLOCK_DV=runtime.padded_width(v), PRECISION=runtime.precision(q),
                num_warps=warps, num_stages=stages,
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
