# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama3_documents.yaml
#   content hash  d2fd6f00fe9816ed
#   text hash     eea667826a1355cb
#   render with   attnforge render specs/llama3_documents.yaml
"""The operators that PyTorch can differentiate and compile, and what each kernel gets."""

import torch

from . import runtime, kernels, padding, tiles  # runtime first: its error explains a missing triton

LOG2E = kernels.LOG2E.value


def attend(q, k, v, entries, cos, sin, positions, in_q_segments, in_k_segments, scale):
    """Out and LSE of checked arguments; the LSE is in log2 units, and inf for a row without keys."""
    # -inf * 0 would be NaN where the kernels apply the scale
    return _attend(q, k, v, entries, cos, sin, positions, in_q_segments, in_k_segments, max(scale, 1e-37))[:2]


def natural(lse):
    """The LSE for users: in natural-log units, -inf for a row without keys."""
    return torch.where(lse == float("inf"), float("-inf"), lse / LOG2E)


@runtime.Operator
def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, entries: torch.Tensor | None, cos: torch.Tensor,
    sin: torch.Tensor, positions: torch.Tensor | None, in_q_segments: torch.Tensor, in_k_segments: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    out, lse = _outputs(q, v, entries)
    if out.numel() == 0 or k.numel() == 0:
        return out.zero_(), lse.fill_(float("inf")), *_empty_ranges(q, k), runtime.empty_rows(q), runtime.empty_rows(k)
    cache = runtime.LaunchCache.of("attend", q, k, v, entries, cos, sin, positions, in_q_segments, in_k_segments)
    q_turned, k_turned = runtime.empty_rows(q), runtime.empty_rows(k)
    padding.clear(cache, entries, [out, q_turned], [k_turned])
    _turn(cache, q, k, q_turned, k_turned, entries, cos, sin, positions)
    q, k = q_turned, k_turned
    q, k, v = cache.readable(q, k, v)
    key_ranges, query_ranges = _ranges(cache, q, k, entries, in_q_segments, in_k_segments)

    def launch(block_m, block_n, warps, stages):
        runtime.launch(
            cache, kernels.forward, (block_m, block_n),
            (q, k, v, out, lse, entries, float(scale), in_q_segments, in_k_segments, key_ranges),
            grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], q.shape[1], block_m, k, v),
            from_shapes=lambda: dict(
                _common(q, k, v, entries, cos, sin, positions, in_q_segments, in_k_segments, key_ranges, block_m, block_n),
                TILE_AXIS=runtime.tile_axis(q.shape[1], block_m), num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip

    if not runtime.attended(
        cache, tiles, k.shape[1], q, k, v, entries, in_q_segments, in_k_segments, key_ranges, scale, out, lse
    ):
        runtime.launch_tuned(cache, tiles, "forward", launch, q, v)
    return out, lse, key_ranges, query_ranges, q_turned, k_turned


def _outputs(q, v, entries):
    batch, rows, heads, _ = q.shape
    return runtime.outputs(q, (batch, rows, heads, v.shape[-1]), (batch, heads, rows), entries)


@_attend.register_fake
def _(q, k, v, entries, cos, sin, positions, in_q_segments, in_k_segments, scale):
    return *_outputs(q, v, entries), *_empty_ranges(q, k), runtime.empty_rows(q), runtime.empty_rows(k)


def _common(q, k, v, entries, cos, sin, positions, in_q_segments, in_k_segments, key_ranges, block_m, block_n):
    """Values that several kernels share, by parameter: a launch passes on those that its kernel takes."""
    return dict(
        q_desc=runtime.tile_source(q, block_m, entries), k_desc=runtime.tile_source(k, block_n, entries),
        v_desc=runtime.tile_source(v, block_n, entries), q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2],
        in_q_segments_stride_batch=runtime.stride(in_q_segments, 0),
        in_q_segments_stride_query=runtime.stride(in_q_segments, 1),
        in_k_segments_stride_batch=runtime.stride(in_k_segments, 0),
        in_k_segments_stride_key=runtime.stride(in_k_segments, 1), q_parts=key_ranges.shape[1],
        GROUP=q.shape[-2] // k.shape[-2], DV=v.shape[-1], BLOCK_M=block_m, BLOCK_N=block_n,
        BLOCK_D=runtime.padded_width(q), BLOCK_DV=runtime.padded_width(v), PRECISION=runtime.precision(q),
        cos_stride_row=cos.stride(0), cos_stride_column=cos.stride(1), sin_stride_row=sin.stride(0),
        sin_stride_column=sin.stride(1), positions_stride_batch=runtime.stride(positions, 0),
        positions_stride_token=runtime.stride(positions, 1), position_end=cos.shape[0], D=q.shape[-1],
        PAIRS=cos.shape[1], BLOCK_PAIRS=runtime.power_of_2(cos.shape[1]),
    )  # fmt: skip


@runtime.Operator
def _differentiate(
    out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, dlse: torch.Tensor | None, wanted: list[bool],
    key_ranges: torch.Tensor, query_ranges: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    entries: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor | None,
    in_q_segments: torch.Tensor, in_k_segments: torch.Tensor, scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    if out.numel() == 0 or k.numel() == 0:
        return tuple(x.zero_() for x in runtime.empty_gradients(wanted, q, k, v))
    dq, dk, dv = gradients = runtime.empty_gradients(wanted, q, k, v)
    dlse = None if dlse is None else dlse.contiguous()
    cache = runtime.LaunchCache.of(
        "differentiate", q, k, v, entries, cos, sin, positions, in_q_segments, in_k_segments, out, dout, lse,
        key_ranges, query_ranges, dlse, *wanted,
    )  # fmt: skip
    q, k, v, out, dout = cache.readable(q, k, v, out, dout)
    padding.clear(cache, entries, [dq], [dk, dv])
    delta = torch.empty_like(lse)
    if runtime.differentiated(  # on Hopper GPUs, all at once
        cache, tiles, wanted[:3], k.shape[1], q, k, v, entries, cos, sin, positions, in_q_segments, in_k_segments,
        query_ranges, scale, out, lse, dout, dlse, delta, dq, dk, dv,
    ):  # fmt: skip
        return tuple(gradients)

    dq = dq if wanted[0] else runtime.empty_like(q)

    def launch(block_m, block_n, warps, stages):
        runtime.launch(
            cache, kernels.backward_dq, (block_m, block_n),
            (q, k, v, out, dout, dq, lse, dlse, delta, entries, float(scale), in_q_segments, in_k_segments,
             key_ranges, cos, sin, positions),
            grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], q.shape[1], block_m, k, v),
            from_shapes=lambda: dict(
                _common(q, k, v, entries, cos, sin, positions, in_q_segments, in_k_segments, key_ranges, block_m, block_n),
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
                (q, k, v, dout, lse, delta, dk, dv, entries, float(scale), in_q_segments, in_k_segments,
                 query_ranges, cos, sin, positions),
                grid=lambda: runtime.grid(q.shape[0] * k.shape[-2], k.shape[1], block_n, q, dout),
                from_shapes=lambda: dict(
                    _common(q, k, v, entries, cos, sin, positions, in_q_segments, in_k_segments, key_ranges, block_m,
                        block_n),
                    dout_desc=runtime.tile_source(dout, block_m, entries),
                    lse_desc=runtime.vector_source(lse, block_m if entries is None else None),
                    delta_desc=runtime.vector_source(delta, block_m if entries is None else None),
                    k_parts=query_ranges.shape[1], TILE_AXIS=runtime.tile_axis(k.shape[1], block_n), MAKES=makes,
                    num_warps=warps, num_stages=stages,
                ),
            )  # fmt: skip

        runtime.launch_tuned(cache, tiles, "backward_dkv", launch, q, v)
    return tuple(gradients)


@_differentiate.register_fake
def _(out, lse, dout, dlse, wanted, key_ranges, query_ranges, *inputs):
    return tuple(runtime.empty_gradients(wanted, *inputs[:3]))


_attend.register_gradients(_differentiate, learned=(0, 1, 2), tensors=9, remade=2)


def _bounds(cache, q, k, entries, in_q_segments, in_k_segments, block_m, block_n):
    """Minimum and maximum of the values that masks read along each tile, and the numbers of tiles."""
    q_tiles, k_tiles = runtime.cdiv(q.shape[1], block_m), runtime.cdiv(k.shape[1], block_n)
    q_bounds = q.new_empty(q.shape[0], q_tiles, 2, dtype=torch.int32)
    k_bounds = q.new_empty(q.shape[0], k_tiles, 2, dtype=torch.int32)
    runtime.launch(
        cache, kernels.bounds, (block_m, block_n), (q_bounds, k_bounds, entries, in_q_segments, in_k_segments),
        grid=lambda: ((q_tiles + k_tiles) * q.shape[0],),
        from_shapes=lambda: dict(
            q_tiles=q_tiles, k_tiles=k_tiles, q_total=q.shape[1], k_total=k.shape[1],
            in_q_segments_stride_batch=runtime.stride(in_q_segments, 0),
            in_q_segments_stride_query=runtime.stride(in_q_segments, 1),
            in_k_segments_stride_batch=runtime.stride(in_k_segments, 0),
            in_k_segments_stride_key=runtime.stride(in_k_segments, 1), BLOCK_M=block_m, BLOCK_N=block_n,
        ),
    )  # fmt: skip
    return q_bounds, k_bounds, q_tiles, k_tiles


def _empty_ranges(q, k):
    """Room for the four numbers of each part's range."""
    key_ranges = q.new_empty(q.shape[0], runtime.cdiv(q.shape[1], kernels.GRAIN.value), 4, dtype=torch.int32)
    query_ranges = q.new_empty(q.shape[0], runtime.cdiv(k.shape[1], kernels.GRAIN.value), 4, dtype=torch.int32)
    return key_ranges, query_ranges


def _ranges(cache, q, k, entries, in_q_segments, in_k_segments):
    """The range of parts of keys that each part of queries needs, and of queries for each part of keys."""
    block_m = block_n = kernels.GRAIN.value
    q_bounds, k_bounds, q_tiles, k_tiles = _bounds(cache, q, k, entries, in_q_segments, in_k_segments, block_m, block_n)
    key_ranges, query_ranges = _empty_ranges(q, k)
    runtime.launch(
        cache, kernels.ranges, (block_m, block_n), (key_ranges, query_ranges, q_bounds, k_bounds, entries),
        grid=lambda: ((q_tiles + k_tiles) * q.shape[0],),
        from_shapes=lambda: dict(
            q_tiles=q_tiles, k_tiles=k_tiles, q_total=q.shape[1], k_total=k.shape[1], BLOCK_M=block_m, BLOCK_N=block_n,
        ),
    )  # fmt: skip
    return key_ranges, query_ranges


def _turn(cache, q, k, q_turned, k_turned, entries, cos, sin, positions, block_t=32):
    """Rotates q and k by the angles of their positions."""
    runtime.launch(
        cache, kernels.rotate, (block_t,), (q, q_turned, k, k_turned, cos, sin, positions, entries),
        grid=lambda: (runtime.cdiv(max(q.shape[1], k.shape[1]), block_t) * q.shape[0] * (q.shape[-2] + k.shape[-2]),),
        from_shapes=lambda: dict(
            q_stride_batch=q.stride(0), q_stride_token=q.stride(1), q_stride_head=q.stride(2),
            q_stride_column=q.stride(3), q_turned_stride_batch=q_turned.stride(0),
            q_turned_stride_token=q_turned.stride(1), q_turned_stride_head=q_turned.stride(2),
            k_stride_batch=k.stride(0), k_stride_token=k.stride(1), k_stride_head=k.stride(2),
            k_stride_column=k.stride(3), k_turned_stride_batch=k_turned.stride(0),
            k_turned_stride_token=k_turned.stride(1), k_turned_stride_head=k_turned.stride(2),
            cos_stride_row=cos.stride(0), cos_stride_column=cos.stride(1), sin_stride_row=sin.stride(0),
            sin_stride_column=sin.stride(1), positions_stride_batch=runtime.stride(positions, 0),
            positions_stride_token=runtime.stride(positions, 1), position_end=cos.shape[0], q_total=q.shape[1],
            k_total=k.shape[1], Hq=q.shape[-2], Hkv=k.shape[-2],
            tiles=runtime.cdiv(max(q.shape[1], k.shape[1]), block_t), PAIRS=cos.shape[1], BLOCK_T=block_t,
            BLOCK_PAIRS=runtime.power_of_2(cos.shape[1]), num_warps=8 if q.shape[-1] > 256 else 4,
        ),
    )  # fmt: skip
