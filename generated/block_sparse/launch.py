# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/block_sparse.yaml
#   content hash  a40f8ac11e310369
#   text hash     44053d59cd60e85d
#   render with   attnforge render specs/block_sparse.yaml
"""The operators that PyTorch can differentiate and compile, and what each kernel gets."""

import torch

from . import runtime, kernels, padding, tiles  # runtime first: its error explains a missing triton

LOG2E = kernels.LOG2E.value


def attend(q, k, v, entries, in_block_mask, scale):
    """Out and LSE of checked arguments; the LSE is in log2 units, and inf for a row without keys."""
    # -inf * 0 would be NaN where the kernels apply the scale
    return _attend(q, k, v, entries, in_block_mask, max(scale, 1e-37))


def natural(lse):
    """The LSE for users: in natural-log units, -inf for a row without keys."""
    return torch.where(lse == float("inf"), float("-inf"), lse / LOG2E)


@runtime.Operator
def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, entries: torch.Tensor | None, in_block_mask: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    out, lse = _outputs(q, v, entries)
    if out.numel() == 0 or k.numel() == 0:
        return out.zero_(), lse.fill_(float("inf"))
    cache = runtime.LaunchCache.of("attend", q, k, v, entries, in_block_mask)
    padding.clear(cache, entries, [out])
    q, k, v = cache.readable(q, k, v)

    def launch(block_m, block_n, warps, stages):
        key_lists = _key_lists(cache, q, k, entries, in_block_mask, block_m, block_n)
        runtime.launch(
            cache, kernels.forward, (block_m, block_n),
            (q, k, v, out, lse, entries, float(scale), in_block_mask, key_lists),
            grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], q.shape[1], block_m, k, v),
            from_shapes=lambda: dict(
                _common(q, k, v, entries, in_block_mask, block_m, block_n),
                TILE_AXIS=runtime.tile_axis(q.shape[1], block_m), num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip

    if not runtime.attended(cache, tiles, k.shape[1], q, k, v, entries, in_block_mask, scale, out, lse):
        runtime.launch_tuned(cache, tiles, "forward", launch, q, v)
    return out, lse


def _outputs(q, v, entries):
    batch, rows, heads, _ = q.shape
    return runtime.outputs(q, (batch, rows, heads, v.shape[-1]), (batch, heads, rows), entries)


@_attend.register_fake
def _(q, k, v, entries, in_block_mask, scale):
    return _outputs(q, v, entries)


def _common(q, k, v, entries, in_block_mask, block_m, block_n):
    """Values that several kernels share, by parameter: a launch passes on those that its kernel takes."""
    return dict(
        q_desc=runtime.tile_source(q, block_m, entries), k_desc=runtime.tile_source(k, block_n, entries),
        v_desc=runtime.tile_source(v, block_n, entries), q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2],
        in_block_mask_stride_batch=runtime.stride(in_block_mask, 0),
        in_block_mask_stride_head=runtime.stride(in_block_mask, 1),
        in_block_mask_stride_query=runtime.stride(in_block_mask, 2),
        in_block_mask_stride_key=runtime.stride(in_block_mask, 3), q_tiles=runtime.cdiv(q.shape[1], block_m),
        k_tiles=runtime.cdiv(k.shape[1], block_n), GROUP=q.shape[-2] // k.shape[-2], DV=v.shape[-1], BLOCK_M=block_m,
        BLOCK_N=block_n, BLOCK_D=runtime.padded_width(q), BLOCK_DV=runtime.padded_width(v),
        PRECISION=runtime.precision(q), D=q.shape[-1],
    )  # fmt: skip


@runtime.Operator
def _differentiate(
    out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, dlse: torch.Tensor | None, wanted: list[bool],
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, entries: torch.Tensor | None, in_block_mask: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    if out.numel() == 0 or k.numel() == 0:
        return tuple(x.zero_() for x in runtime.empty_gradients(wanted, q, k, v))
    dq, dk, dv = gradients = runtime.empty_gradients(wanted, q, k, v)
    dlse = None if dlse is None else dlse.contiguous()
    cache = runtime.LaunchCache.of(
        "differentiate", q, k, v, entries, in_block_mask, out, dout, lse, dlse, *wanted,
    )  # fmt: skip
    q, k, v, out, dout = cache.readable(q, k, v, out, dout)
    padding.clear(cache, entries, [dq], [dk, dv])
    delta = torch.empty_like(lse)
    if runtime.differentiated(  # on Hopper GPUs, all at once
        cache, tiles, wanted[:3], k.shape[1], q, k, v, entries, in_block_mask, scale, out, lse, dout, dlse, delta,
        dq, dk, dv,
    ):  # fmt: skip
        return tuple(gradients)

    dq = dq if wanted[0] else runtime.empty_like(q)

    def launch(block_m, block_n, warps, stages):
        key_lists = _key_lists(cache, q, k, entries, in_block_mask, block_m, block_n)
        runtime.launch(
            cache, kernels.backward_dq, (block_m, block_n),
            (q, k, v, out, dout, dq, lse, dlse, delta, entries, float(scale), in_block_mask, key_lists),
            grid=lambda: runtime.grid(q.shape[0] * q.shape[-2], q.shape[1], block_m, k, v),
            from_shapes=lambda: dict(
                _common(q, k, v, entries, in_block_mask, block_m, block_n),
                out_desc=runtime.tile_source(out, block_m, entries),
                dout_desc=runtime.tile_source(dout, block_m, entries),
                TILE_AXIS=runtime.tile_axis(q.shape[1], block_m), num_warps=warps, num_stages=stages,
            ),
        )  # fmt: skip

    runtime.launch_tuned(cache, tiles, "backward_dq", launch, q, v)

    if wanted[1] or wanted[2]:
        dk, dv = (x if x.numel() else runtime.empty_like(y) for x, y in ((dk, k), (dv, v)))

        def launch(block_m, block_n, warps, stages, makes=None):
            query_lists = _query_lists(cache, q, k, entries, in_block_mask, block_m, block_n)
            runtime.launch(
                cache, kernels.backward_dkv, (block_m, block_n, makes),
                (q, k, v, dout, lse, delta, dk, dv, entries, float(scale), in_block_mask, query_lists),
                grid=lambda: runtime.grid(q.shape[0] * k.shape[-2], k.shape[1], block_n, q, dout),
                from_shapes=lambda: dict(
                    _common(q, k, v, entries, in_block_mask, block_m, block_n),
                    dout_desc=runtime.tile_source(dout, block_m, entries),
                    lse_desc=runtime.vector_source(lse, block_m if entries is None else None),
                    delta_desc=runtime.vector_source(delta, block_m if entries is None else None),
                    TILE_AXIS=runtime.tile_axis(k.shape[1], block_n), MAKES=makes, num_warps=warps, num_stages=stages,
                ),
            )  # fmt: skip

        runtime.launch_tuned(cache, tiles, "backward_dkv", launch, q, v)
    return tuple(gradients)


@_differentiate.register_fake
def _(out, lse, dout, dlse, wanted, *inputs):
    return tuple(runtime.empty_gradients(wanted, *inputs[:3]))


_attend.register_gradients(_differentiate, learned=(0, 1, 2), tensors=5)


def _key_lists(cache, q, k, entries, in_block_mask, block_m, block_n):
    """For each tile of queries the list of the tiles of keys that it needs, as `tile_list` says."""
    q_tiles, k_tiles = runtime.cdiv(q.shape[1], block_m), runtime.cdiv(k.shape[1], block_n)
    key_lists = q.new_empty(q.shape[0] * q.shape[-2], q_tiles, k_tiles + 2, dtype=torch.int32)
    runtime.launch(
        cache, kernels.list_keys, (block_m, block_n), (key_lists, entries, in_block_mask),
        grid=lambda: (q_tiles * q.shape[0] * q.shape[-2],),
        from_shapes=lambda: dict(
            q_tiles=q_tiles, k_tiles=k_tiles, q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2],
            in_block_mask_stride_batch=runtime.stride(in_block_mask, 0),
            in_block_mask_stride_head=runtime.stride(in_block_mask, 1),
            in_block_mask_stride_query=runtime.stride(in_block_mask, 2),
            in_block_mask_stride_key=runtime.stride(in_block_mask, 3), BLOCK_M=block_m, BLOCK_N=block_n,
        ),
    )  # fmt: skip
    return key_lists


def _query_lists(cache, q, k, entries, in_block_mask, block_m, block_n):
    """For each tile of keys the list of the tiles of queries that it needs, as `tile_list` says."""
    q_tiles, k_tiles = runtime.cdiv(q.shape[1], block_m), runtime.cdiv(k.shape[1], block_n)
    query_lists = q.new_empty(q.shape[0] * q.shape[-2], k_tiles, q_tiles + 2, dtype=torch.int32)
    runtime.launch(
        cache, kernels.list_queries, (block_m, block_n), (query_lists, entries, in_block_mask),
        grid=lambda: (k_tiles * q.shape[0] * q.shape[-2],),
        from_shapes=lambda: dict(
            q_tiles=q_tiles, k_tiles=k_tiles, q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2],
            in_block_mask_stride_batch=runtime.stride(in_block_mask, 0),
            in_block_mask_stride_head=runtime.stride(in_block_mask, 1),
            in_block_mask_stride_query=runtime.stride(in_block_mask, 2),
            in_block_mask_stride_key=runtime.stride(in_block_mask, 3), BLOCK_M=block_m, BLOCK_N=block_n,
        ),
    )  # fmt: skip
    return query_lists
