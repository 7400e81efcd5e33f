# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gemma2_global.yaml
#   content hash  dcf4b4b76133c6ba
#   text hash     88d903d1f59a10fa
#   render with   attnforge render specs/gemma2_global.yaml
"""The same attention in plain PyTorch: slow, simple, differentiated by autograd."""

from __future__ import annotations

import math

import torch


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
):
    """The global layers of Gemma 2, with capped scores.

    Takes and returns what `attention` does, on any device; computes in float32, or float64 for float64 inputs.
    """
    with torch.autocast(q.device.type, enabled=False):
        out, lse = _attention(q, k, v, cos=cos, sin=sin, positions=positions, scale=scale)
    return (out, lse) if return_lse else out


def _attention(q, k, v, *, cos, sin, positions, scale, rounds_to=None):
    """Out and LSE; `rounds_to` is a dtype that operands of products are rounded to, as the kernels round them."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    out_dtype, lse_dtype = q.dtype, dtype
    q, k, v = (x.to(dtype) for x in (q, k, v))
    out, lse = _attend(q, k, v, cos, sin, positions, scale, rounds_to)
    return out.to(out_dtype), lse.to(lse_dtype)


def _attend(q, k, v, cos, sin, positions, scale, rounds_to):
    """Attention of a batch whose sequences have one length: q (B, Tq, Hq, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv)."""
    q_len = q.shape[1]
    k_len = k.shape[1]
    heads = q.shape[2]
    dtype = q.dtype
    device = q.device
    q_pos = torch.arange(k_len - q_len, k_len, device=device)[:, None]
    k_pos = torch.arange(k_len, device=device)
    q, k = _rotated(q, k, cos.to(dtype), sin.to(dtype), positions, q_pos[:, 0], k_pos)
    q, k = _round(q, rounds_to, forward=True), _round(k, rounds_to, forward=True)
    k, v = (x.repeat_interleave(heads // x.shape[2], 2) for x in (k, v))
    if q_len == 0 or k_len == 0:  # no place that a term could speak of
        lse = q.new_full((q.shape[0], heads, q_len), -math.inf)
        return torch.einsum("bihd,bjhd,bjhe->bihe", q, k, v), lse

    score = _round(torch.einsum("bihd,bjhd->bhij", q, k), rounds_to, backward=True) * scale
    keep = k_pos <= q_pos  # causal
    score = 50.0 * torch.tanh(score / 50.0)  # softcap
    score = torch.where(keep, score, -math.inf)
    if rounds_to is None:
        weight, lse = _softmax(score)
        out = torch.einsum("bhij,bjhd->bhid", weight, v)
    else:
        out, lse = _Rounded.apply(score, v, rounds_to)
    return out.transpose(1, 2), lse


def _rotated(q, k, cos, sin, positions, q_pos, k_pos):
    """q and k with pairs of components turned by the angles of their positions."""
    if positions is None:
        q_rows, k_rows = q_pos[None], k_pos[None]
    else:
        k_rows, ahead = positions.expand(-1, k.shape[1]), k.shape[1] - q.shape[1]
        before = k_rows.new_zeros(len(k_rows), max(-ahead, 0))  # queries before the first key
        q_rows = torch.cat((before, k_rows[:, max(ahead, 0) :]), 1)
    return _rotate(q, cos, sin, q_rows), _rotate(k, cos, sin, k_rows)


def _rotate(x, cos, sin, rows):
    rows = rows.long().clamp(0, cos.shape[0] - 1)
    cos, sin = cos[rows][:, :, None], sin[rows][:, :, None]  # [B or 1, T, 1, dims / 2]
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


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


class _Rounded(torch.autograd.Function):
    """The same, with gradients that make rounded weights of the LSE again."""

    @staticmethod
    def forward(ctx, score, v, dtype):
        out, lse = _rounded(score, v, dtype)
        ctx.save_for_backward(score, v, out.to(dtype).to(v.dtype), lse)
        ctx.dtype = dtype
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        score, v, out, lse = ctx.saved_tensors
        lse = torch.where(lse == -math.inf, math.inf, lse)
        log2e = 1 / math.log(2)
        weight = torch.exp2(score * log2e - (lse * log2e)[..., None])
        rounded = weight.to(ctx.dtype).to(v.dtype)
        dweight = torch.einsum("bhid,bjhd->bhij", dout, v)
        dv = torch.einsum("bhij,bhid->bjhd", rounded, dout)
        delta = (out * dout).sum(-1) - dlse
        return weight * (dweight - delta[..., None]), dv, None


class _Round(torch.autograd.Function):
    """Rounds a value, its gradient or both to a dtype and back."""

    @staticmethod
    def forward(ctx, x, dtype, forward, backward):
        ctx.dtype = dtype if backward else x.dtype
        return x.to(dtype).to(x.dtype) if forward else x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.to(ctx.dtype).to(grad.dtype), None, None, None


def _round(x, dtype, *, forward=False, backward=False):
    """x with its value, its gradient or both rounded to a dtype; x itself where no dtype is given."""
    return x if dtype is None else _Round.apply(x, dtype, forward, backward)
