# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/forgetting_transformer.yaml
#   content hash  47e5d5cb1754c026
#   text hash     8c9e4180a597cf0d
#   render with   attnforge render specs/forgetting_transformer.yaml
"""Where weights vanish because scores fall with the distance: kernels.py has the kernels that find it."""

import torch

from . import runtime, kernels  # runtime first: its error explains a missing triton

# sequences with fewer queries than LONG are not worth the norms, which are found for PART rows at a time
LONG, PART = (32, 16) if runtime.INTERPRETED else (4096, 128)


def _norms(cache, q, k, sums, entries):
    """The largest squared norm of PART rows at a time of each head of q, then of each head of k."""
    shape = q.shape[0], q.shape[-2] + k.shape[-2], runtime.cdiv(max(q.shape[1], k.shape[1]), PART)
    norms = q.new_empty(shape, dtype=torch.float32)
    runtime.launch(
        cache, kernels.norms, (PART,), (q, k, norms, sums, entries),
        grid=lambda: (norms.numel(),),
        from_shapes=lambda: dict(
            q_stride_batch=q.stride(0), q_stride_token=q.stride(1), q_stride_head=q.stride(2),
            k_stride_batch=k.stride(0), k_stride_token=k.stride(1), k_stride_head=k.stride(2), q_total=q.shape[1],
            k_total=k.shape[1], Hq=q.shape[-2], Hkv=k.shape[-2], parts=norms.shape[-1],
            sums_stride_batch=runtime.stride(sums, 0), heads=sums.shape[-3], k_rows=sums.shape[-1], D=q.shape[-1],
            BLOCK_D=runtime.padded_width(q), PART=PART, ROWS=min(PART, 32),
        ),
    )  # fmt: skip
    return norms


def shorten(cache, sums, q, k, entries, scale):
    """Let the documents of long sequences leave out all tokens that have no weight because they are too far away."""
    if q.shape[1] < LONG:
        return
    norms = _norms(cache, q, k, sums, entries)
    if sums.shape[0] < norms.shape[0]:  # batch entries share them
        norms = norms.amax(0, keepdim=True)
    runtime.launch(
        cache, kernels.shorten, (PART,), (sums, norms, entries, float(scale)),
        grid=lambda: (runtime.cdiv(k.shape[1], PART) * sums.shape[0] * sums.shape[1],),
        from_shapes=lambda: dict(
            q_total=q.shape[1], k_total=k.shape[1], Hq=q.shape[-2], Hkv=k.shape[-2], heads=sums.shape[-3],
            k_rows=sums.shape[-1], parts=norms.shape[-1], own_parts=runtime.cdiv(k.shape[1], PART), PART=PART,
        ),
    )  # fmt: skip
