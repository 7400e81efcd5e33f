# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_log_decay.yaml
#   content hash  4f526d5794ae086f
#   text hash     5a3bfccbd6986c75
#   render with   attnforge render specs/packed_log_decay.yaml
"""Where weights vanish because scores fall with the distance: kernels.py has the kernels that find it."""

import torch

from . import runtime, kernels  # runtime first: its error explains a missing triton

# sequences with fewer queries than LONG are not worth the norms, which are found for PART rows at a time
LONG, PART = (32, 16) if runtime.INTERPRETED else (4096, 128)


def _norms(cache, q, k):
    """The largest squared norm of PART rows at a time of each head of q, then of each head of k."""
    shape = q.shape[-2] + k.shape[-2], runtime.cdiv(max(q.shape[0], k.shape[0]), PART)
    norms = q.new_empty(shape, dtype=torch.float32)
    runtime.launch(
        cache, kernels.norms, (PART,), (q, k, norms),
        grid=lambda: (norms.numel(),),
        from_shapes=lambda: dict(
            q_stride_token=q.stride(0), q_stride_head=q.stride(1), k_stride_token=k.stride(0),
            k_stride_head=k.stride(1), q_total=q.shape[0], k_total=k.shape[0], Hq=q.shape[-2], parts=norms.shape[-1],
            D=q.shape[-1], BLOCK_D=runtime.padded_width(q), PART=PART, ROWS=min(PART, 32),
        ),
    )  # fmt: skip
    return norms


def shorten(cache, sums, q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scale):
    """Let the documents of long sequences leave out all tokens that have no weight because they are too far away."""
    if max_seqlen_q < LONG:
        return
    norms = _norms(cache, q, k)
    runtime.launch(
        cache, kernels.shorten, (PART,), (sums, norms, cu_seqlens_q, cu_seqlens_k, float(scale)),
        grid=lambda: (runtime.cdiv(max_seqlen_k, PART) * sums.shape[0] * (cu_seqlens_k.shape[0] - 1),),
        from_shapes=lambda: dict(
            q_total=q.shape[0], max_seqlen_q=max_seqlen_q, k_total=k.shape[0], max_seqlen_k=max_seqlen_k,
            Hq=q.shape[-2], Hkv=k.shape[-2], heads=sums.shape[-3], k_rows=sums.shape[-1], parts=norms.shape[-1],
            own_parts=runtime.cdiv(max_seqlen_k, PART), PART=PART,
        ),
    )  # fmt: skip
