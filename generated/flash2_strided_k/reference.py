# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/flash2_strided_k.yaml
#   content hash  ca4cfd4cc47978b3
#   text hash     5ed21cfb62d61bbf
#   render with   attnforge render specs/flash2_strided_k.yaml
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
    """The forward pass of causal attention with keys loaded as columns, whose neighbours stand a whole row apart in memory.

    Takes and returns what `attention` does, on any device; computes in float32, or float64 for float64 inputs.
    """
    with torch.autocast(q.device.type, enabled=False):
        out_dtype, dtype = q.dtype, torch.promote_types(q.dtype, torch.float32)
        if scale is None:
            scale = 1 / math.sqrt(q.shape[-1])
        q, k, v = (x.to(dtype) for x in (q, k, v))
        out, lse = _attend(q, k, v, scale)
        out, lse = out.to(out_dtype), lse.to(dtype)
    return (out, lse) if return_lse else out


def _attend(q, k, v, scale):
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

    score = _scores(q, k) * scale
    keep = k_pos <= q_pos  # causal
    score = torch.where(keep, score, -math.inf)
    out, lse = _weighted(score, v)
    return out.transpose(1, 2), lse


def _scores(q, k):
    """q·k of each query and key, (B, Hq, Tq, Tk)."""
    return torch.einsum("bihd,bjhd->bhij", q, k)


def _weighted(score, v):
    """The softmax of scores, times v, and its LSE; a row of nothing but -inf gives 0, -inf and gradients of 0."""
    top = score.detach().amax(-1, keepdim=True)
    top = torch.where(top == -math.inf, 0.0, top)
    weight = torch.exp(score - top)
    total = weight.sum(-1, keepdim=True)
    visible = total != 0
    total = torch.where(visible, total, 1.0)
    lse = torch.where(visible, top + torch.log(total), -math.inf)
    weight = weight / total
    return torch.einsum("bhij,bjhd->bhid", weight, v), lse[..., 0]
