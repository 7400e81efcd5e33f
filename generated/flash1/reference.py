# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/flash1.yaml
#   content hash  541af1538b1d904a
#   text hash     b2286fdaa48e8e35
#   render with   attnforge render specs/flash1.yaml
"""The same attention in plain PyTorch: slow, simple, differentiated by autograd."""

from __future__ import annotations

import math

import torch


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    return_lse: bool = False,
):
    """Causal attention in the order of the first FlashAttention, forward only: each tile of keys takes all queries, whose sums stand in memory.

    Takes and returns what `attention` does, on any device; computes in float32, or float64 for float64 inputs.
    """
    with torch.autocast(q.device.type, enabled=False):
        out, lse = _attention(q, k, v, scale=scale)
    return (out, lse) if return_lse else out


def _attention(q, k, v, *, scale, rounds_to=None):
    """Out and LSE; `rounds_to` is a dtype that operands of products are rounded to, as the kernels round them."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    out_dtype, lse_dtype = q.dtype, dtype
    q, k, v = (x.to(dtype) for x in (q, k, v))
    out, lse = _attend(q, k, v, scale, rounds_to)
    return out.to(out_dtype), lse.to(lse_dtype)


def _attend(q, k, v, scale, rounds_to):
    """Attention of a batch whose sequences have one length: q (B, Tq, Hq, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv)."""
    q_len = q.shape[1]
    k_len = k.shape[1]
    heads = q.shape[2]
    device = q.device
    q_pos = torch.arange(k_len - q_len, k_len, device=device)[:, None]
    k_pos = torch.arange(k_len, device=device)
    k, v = (x.repeat_interleave(heads // x.shape[2], 2) for x in (k, v))
    if q_len == 0 or k_len == 0:  # no place that a term could speak of
        lse = q.new_full((q.shape[0], heads, q_len), -math.inf)
        return torch.einsum("bihd,bjhd,bjhe->bihe", q, k, v), lse

    score = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    keep = k_pos <= q_pos  # causal
    score = torch.where(keep, score, -math.inf)
    if rounds_to is None:
        weight, lse = _softmax(score)
        out = torch.einsum("bhij,bjhd->bhid", weight, v)
    else:
        out, lse = _rounded(score, v, rounds_to)
    return out.transpose(1, 2), lse


def _softmax(score, exp=torch.exp, log=torch.log):
    """Weights and LSE; a row of nothing but -inf gives 0, -inf and gradients of 0."""
    top = score.detach().amax(-1, keepdim=True)
    top = torch.where(top == -math.inf, 0.0, top)
    weight = exp(score - top)
    total = weight.sum(-1, keepdim=True)
    seen = total != 0
    total = torch.where(seen, total, 1.0)
    lse = torch.where(seen, top + log(total), -math.inf)
    return weight / total, lse[..., 0]


def _rounded(score, v, dtype):
    """Softmax and product with v as kernels compute them: in log2 units, with rounded weights."""
    log2e = 1 / math.log(2)
    weight, lse = _softmax(score * log2e, torch.exp2, torch.log2)
    top = weight.amax(-1, keepdim=True)
    top = torch.where(top == 0, 1.0, top)
    weight = (weight / top).to(dtype).to(v.dtype)
    return torch.einsum("bhij,bjhd->bhid", weight, v) * top, lse / log2e
