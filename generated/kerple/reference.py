# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/kerple.yaml
#   content hash  351277f9da19d759
#   text hash     365171253fdd28d1
#   render with   attnforge render specs/kerple.yaml
"""The same attention in plain PyTorch: slow, simple, differentiated by autograd."""

from __future__ import annotations

import math

import torch


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    decay: torch.Tensor,
    width: torch.Tensor,
    scale: float | None = None,
    return_lse: bool = False,
):
    """Causal attention that falls with the logarithm of the distance, at a learned rate.

    Takes and returns what `attention` does, on any device; computes in float32, or float64 for float64 inputs.
    """
    with torch.autocast(q.device.type, enabled=False):
        out, lse = _attention(q, k, v, decay=decay, width=width, scale=scale)
    return (out, lse) if return_lse else out


def _attention(q, k, v, *, decay, width, scale, rounds_to=None):
    """Out and LSE; `rounds_to` is a dtype that operands of products are rounded to, as the kernels round them."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    out_dtype, lse_dtype = q.dtype, dtype
    q, k, v = (x.to(dtype) for x in (q, k, v))
    out, lse = _attend(q, k, v, decay, width, scale, rounds_to)
    return out.to(out_dtype), lse.to(lse_dtype)


def _attend(q, k, v, decay, width, scale, rounds_to):
    """Attention of a batch whose sequences have one length: q (B, Tq, Hq, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv)."""
    q_len = q.shape[1]
    k_len = k.shape[1]
    heads = q.shape[2]
    dtype = q.dtype
    device = q.device
    q_pos = torch.arange(k_len - q_len, k_len, device=device)[:, None]
    k_pos = torch.arange(k_len, device=device)
    if q_len == 0 or k_len == 0:  # no place that a term could speak of
        lse = q.new_full((q.shape[0], heads, q_len), -math.inf)
        return torch.einsum("bihd,bjhd,bjhe->bihe", q, k, v), lse
    width = width.to(dtype)
    decay = decay.to(dtype)

    score = _round(torch.einsum("bihd,bjhd->bhij", q, k), rounds_to, backward=True) * scale
    keep = k_pos <= q_pos  # causal

    def visible(x):
        """x where the mask shows it: a NaN or an infinite derivative elsewhere reaches no gradient."""
        return torch.where(keep, x, 0.0)

    score = visible(score) - torch.nn.functional.softplus(visible(decay[:, None, None])) * torch.log(
        1 + torch.nn.functional.softplus(visible(width[:, None, None])) * (q_pos - k_pos)
    )  # score - softplus(decay) * log(1 + softplus(width) * (q - k))
    # what float32 cannot hold in log2 units: kernels take it for hidden
    score = torch.where(score < torch.finfo(torch.float32).min * math.log(2), -math.inf, score)
    score = torch.where(keep, score, -math.inf)
    if rounds_to is None:
        weight, lse = _softmax(score)
        out = torch.einsum("bhij,bjhd->bhid", weight, v)
    else:
        out, lse = _Rounded.apply(score, v, rounds_to)
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
