# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/alibi.yaml
#   content hash  2586ec55e22bdb9e
#   text hash     300d2428440a3c18
#   render with   attnforge render specs/alibi.yaml
"""Where weights vanish because scores fall with the distance: kernels.py has the kernels that find it."""

import torch

from . import runtime, kernels  # runtime first: its error explains a missing triton

# sequences with fewer queries than LONG are not worth the norms, which are found for PART rows at a time
LONG, PART = (32, 16) if runtime.INTERPRETED else (4096, 128)


def _norms(cache, q, k, in_slopes):
    """The largest squared norm of PART rows at a time of each head of q, then of each head of k."""
    shape = q.shape[0], q.shape[-2] + k.shape[-2], runtime.cdiv(max(q.shape[1], k.shape[1]), PART)
    norms = q.new_empty(shape, dtype=torch.float32)
    runtime.launch(
        cache, kernels.norms, (PART,), (q, k, norms, in_slopes),
        grid=lambda: (norms.numel(),),
        from_shapes=lambda: dict(
            q_stride_batch=q.stride(0), q_stride_token=q.stride(1), q_stride_head=q.stride(2),
            k_stride_batch=k.stride(0), k_stride_token=k.stride(1), k_stride_head=k.stride(2), q_total=q.shape[1],
            k_total=k.shape[1], Hq=q.shape[-2], Hkv=k.shape[-2], parts=norms.shape[-1],
            in_slopes_stride_head=runtime.stride(in_slopes, 0), D=q.shape[-1], BLOCK_D=runtime.padded_width(q),
            PART=PART, ROWS=min(PART, 32),
        ),
    )  # fmt: skip
    return norms


def find_horizons(cache, q, k, entries, in_slopes, scale, back=False):
    """For each head, beyond which distance keys have no weight; None for sequences that are not worth it.

    A backward pass gains twice as much as a forward pass, so it is worth it for sequences half as long.
    """
    if q.shape[1] < (LONG // 2 if back else LONG):
        return None
    norms = _norms(cache, q, k, in_slopes)
    horizons = q.new_empty(q.shape[0], q.shape[-2], dtype=torch.int32)
    runtime.launch(
        cache, kernels.horizons, (PART,), (horizons, norms, entries, float(scale), in_slopes),
        grid=lambda: (horizons.numel(),),
        from_shapes=lambda: dict(
            q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2], Hkv=k.shape[-2], parts=norms.shape[-1],
            in_slopes_stride_head=runtime.stride(in_slopes, 0), PART=PART,
        ),
    )  # fmt: skip
    return horizons
