# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/log_decay.yaml
#   content hash  f00fdeca8a26257f
#   text hash     5bea2f8b62e4cac5
#   render with   attnforge render specs/log_decay.yaml
"""The operators that PyTorch can differentiate and compile, and what each kernel gets."""

import torch

from . import runtime, kernels, padding, tiles  # runtime first: its error explains a missing triton
from .vanishing import shorten

LOG2E = kernels.LOG2E.value


def attend(q, k, v, entries, in_log_decay, scale):
    """Out and LSE of checked arguments; the LSE is in log2 units, and inf for a row without keys."""
    # -inf * 0 would be NaN where the kernels apply the scale
    return _attend(q, k, v, entries, in_log_decay, max(scale, 1e-30))[:2]


def natural(lse):
    """The LSE for users: in natural-log units, -inf for a row without keys."""
    return torch.where(lse == float("inf"), float("-inf"), lse / LOG2E)


@runtime.Operator
def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, entries: torch.Tensor | None, in_log_decay: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    out, lse = _outputs(q, v, entries)
    if out.numel() == 0 or k.numel() == 0:
        return out.zero_(), lse.fill_(float("inf")), _empty_sums(in_log_decay.permute(0, 2, 1), entries)
    cache = runtime.LaunchCache.of("attend", q, k, v, entries, in_log_decay)
    padding.clear(cache, entries, [out])
    q, k, v = cache.readable(q, k, v)
    in_log_decay_sums = _sums(in_log_decay.permute(0, 2, 1), entries, -4096.0)
    shorten(cache, in_log_decay_sums, q, k, entries, scale)

    def launch(block_m, block_n, warps, stages):
        runtime.launch(
            cache, kernels.forward, (block_m, block_n),
            (q, k, v, in_log_decay_sums, out, lse, entries, float(scale), in_log_decay_sums),
            grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], q.shape[1], block_m, k, v),
            from_shapes=lambda: dict(
                _common(q, k, v, entries, in_log_decay_sums, block_m, block_n),
                in_log_decay_desc=runtime.vector_source(in_log_decay_sums, block_n if entries is None else None),
                TILE_AXIS=runtime.tile_axis(q.shape[1], block_m), num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip

    if not runtime.attended(cache, tiles, k.shape[1], q, k, v, entries, in_log_decay_sums, scale, out, lse):
        runtime.launch_tuned(cache, tiles, "forward", launch, q, v)
    return out, lse, in_log_decay_sums


def _outputs(q, v, entries):
    batch, rows, heads, _ = q.shape
    return runtime.outputs(q, (batch, rows, heads, v.shape[-1]), (batch, heads, rows), entries)


@_attend.register_fake
def _(q, k, v, entries, in_log_decay, scale):
    return *_outputs(q, v, entries), _empty_sums(in_log_decay.permute(0, 2, 1), entries)


def _common(q, k, v, entries, in_log_decay_sums, block_m, block_n):
    """Values that several kernels share, by parameter: a launch passes on those that its kernel takes."""
    return dict(
        q_desc=runtime.tile_source(q, block_m, entries), k_desc=runtime.tile_source(k, block_n, entries),
        v_desc=runtime.tile_source(v, block_n, entries), q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2],
        in_log_decay_stride_batch=runtime.stride(in_log_decay_sums, 0),
        in_log_decay_stride_head=runtime.stride(in_log_decay_sums, -3),
        in_log_decay_stride_token=runtime.stride(in_log_decay_sums, -1),
        in_log_decay_stride_part=in_log_decay_sums.stride(-2), GROUP=q.shape[-2] // k.shape[-2], DV=v.shape[-1],
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=runtime.padded_width(q), BLOCK_DV=runtime.padded_width(v),
        PRECISION=runtime.precision(q), D=q.shape[-1],
    )  # fmt: skip


@runtime.Operator
def _differentiate(
    out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, dlse: torch.Tensor | None, wanted: list[bool],
    in_log_decay_sums: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    entries: torch.Tensor | None, in_log_decay: torch.Tensor, scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    if out.numel() == 0 or k.numel() == 0:
        return tuple(x.zero_() for x in runtime.empty_gradients(wanted, q, k, v, in_log_decay))
    dq, dk, dv = gradients = runtime.empty_gradients(wanted, q, k, v)
    gradients += [q.new_empty(0) for _ in wanted[3:]]
    dlse = None if dlse is None else dlse.contiguous()
    # whether descriptors can read values at the positions of queries: they start at multiples of 16 bytes
    level = entries is None and (k.shape[1] - q.shape[1]) % 8 == 0
    cache = runtime.LaunchCache.of(
        "differentiate", q, k, v, entries, in_log_decay, out, dout, lse, in_log_decay_sums, dlse, level, *wanted,
    )  # fmt: skip
    q, k, v, out, dout = cache.readable(q, k, v, out, dout)
    padding.clear(cache, entries, [dq], [dk, dv])
    delta = torch.empty_like(lse)
    in_log_decay_k_sum = (
        (lse.new_empty if entries is None else lse.new_zeros)(q.shape[0], q.shape[2], in_log_decay_sums.shape[-1])
        if wanted[3]
        else None
    )
    in_log_decay_q_sum = lse.new_zeros(q.shape[0], q.shape[2], in_log_decay_sums.shape[-1]) if wanted[3] else None
    # on Hopper GPUs
    at_once = runtime.differentiated(
        cache, tiles, wanted[:3], k.shape[1], q, k, v, entries, in_log_decay_sums, scale, out, lse, dout, dlse,
        delta, dq, dk, dv, in_log_decay_k_sum, in_log_decay_q_sum,
    )  # fmt: skip
    if not at_once:
        dq = dq if wanted[0] else runtime.empty_like(q)

        def launch(block_m, block_n, warps, stages):
            runtime.launch(
                cache, kernels.backward_dq, (block_m, block_n),
                (q, k, v, out, dout, in_log_decay_sums, dq, lse, dlse, delta, entries, float(scale),
                 in_log_decay_sums, in_log_decay_q_sum),
                grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], q.shape[1], block_m, k, v),
                from_shapes=lambda: dict(
                    _common(q, k, v, entries, in_log_decay_sums, block_m, block_n),
                    out_desc=runtime.tile_source(out, block_m, entries),
                    dout_desc=runtime.tile_source(dout, block_m, entries),
                    in_log_decay_desc=runtime.vector_source(in_log_decay_sums, block_n if entries is None else None),
                    TILE_AXIS=runtime.tile_axis(q.shape[1], block_m), num_warps=warps, num_stages=stages,
                ),
            )  # fmt: skip

        runtime.launch_tuned(cache, tiles, "backward_dq", launch, q, v)

        if wanted[1] or wanted[2] or wanted[3]:
            dk, dv = (x if x.numel() else runtime.empty_like(y) for x, y in ((dk, k), (dv, v)))

            def launch(block_m, block_n, warps, stages, makes=None):
                runtime.launch(
                    cache, kernels.backward_dkv, (block_m, block_n, makes),
                    (q, k, v, dout, lse, delta, in_log_decay_sums, dk, dv, entries, float(scale), in_log_decay_sums,
                     in_log_decay_k_sum if makes != "dv" else None),
                    grid=lambda: runtime.grid(q.shape[0] * k.shape[-2], k.shape[1], block_n, q, dout),
                    from_shapes=lambda: dict(
                        _common(q, k, v, entries, in_log_decay_sums, block_m, block_n),
                        dout_desc=runtime.tile_source(dout, block_m, entries),
                        lse_desc=runtime.vector_source(lse, block_m if entries is None else None),
                        delta_desc=runtime.vector_source(delta, block_m if entries is None else None),
                        in_log_decay_desc=runtime.vector_source(in_log_decay_sums, block_m if level else None),
                        TILE_AXIS=runtime.tile_axis(k.shape[1], block_n), MAKES=makes, num_warps=warps,
                        num_stages=stages,
                    ),
                )  # fmt: skip

            runtime.launch_tuned(cache, tiles, "backward_dkv", launch, q, v)
    if wanted[3]:
        total = in_log_decay_q_sum + in_log_decay_k_sum
        total = _summed_back(
            total.sum_to_size(in_log_decay_sums[..., 0, :].shape).contiguous(),
            in_log_decay.permute(0, 2, 1),
            entries,
            -4096.0,
        )
        gradients[3] = total.permute(0, 2, 1).contiguous()
    return tuple(gradients)


@_differentiate.register_fake
def _(out, lse, dout, dlse, wanted, in_log_decay_sums, *inputs):
    return tuple(runtime.empty_gradients(wanted, *(inputs[i] for i in (0, 1, 2, 4))))


_attend.register_gradients(_differentiate, learned=(0, 1, 2, 4), tensors=5)


def _empty_sums(x, entries):
    """Room for the four parts of x's running sums."""
    *lead, tokens = _of_entries(x, entries).shape
    return (x.new_empty if entries is None else x.new_zeros)(*lead, 4, tokens, dtype=torch.float32)


def _sums(x, entries, reset):
    """The running sums of x over its last axis, as kernels read them; a value of `reset` or less begins a document."""
    x = _of_entries(x, entries)
    sums, block = _empty_sums(x, entries), 64 if runtime.INTERPRETED else 1024
    cache = runtime.LaunchCache.of("scan", x, entries, reset)
    runtime.launch(
        cache, kernels.scan, (block,), (x, sums, entries),
        grid=lambda: (x.shape[0] * x.shape[-2],),
        from_shapes=lambda: dict(
            x_stride_batch=x.stride(0), x_stride_head=x.stride(1), x_stride_token=x.stride(2), k_total=x.shape[-1],
            heads=x.shape[-2], RESET=reset, BLOCK=block,
        ),
    )  # fmt: skip
    return sums


def _summed_back(dsums, x, entries, reset):
    """The gradient of x from that of its running sums."""
    shape, block = x.shape, 64 if runtime.INTERPRETED else 1024
    x = _of_entries(x, entries)
    dx = x.new_empty(x.shape) if entries is None else x.new_zeros(x.shape, dtype=torch.float32)
    cache = runtime.LaunchCache.of("scan_back", x, dsums, entries, reset)
    runtime.launch(
        cache, kernels.scan_back, (block,), (x, dsums, dx, entries),
        grid=lambda: (x.shape[0] * x.shape[-2],),
        from_shapes=lambda: dict(
            x_stride_batch=x.stride(0), x_stride_head=x.stride(1), x_stride_token=x.stride(2), k_total=x.shape[-1],
            heads=x.shape[-2], RESET=reset, BLOCK=block,
        ),
    )  # fmt: skip
    return dx if entries is None else dx.sum_to_size(shape).to(x.dtype)


def _of_entries(x, entries):
    """x; with `entries`, expanded to all batch entries, as each has tokens of its own."""
    return x if entries is None else x.expand(entries.shape[0], -1, -1)
