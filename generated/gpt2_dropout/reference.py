# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gpt2_dropout.yaml
#   content hash  9d10b3dd6a898a15
#   text hash     e6779f6788266e62
#   render with   attnforge render specs/gpt2_dropout.yaml
"""The same attention in plain PyTorch: slow, simple, differentiated by autograd."""

from __future__ import annotations

import math

import torch


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    dropout_p: float = 0.0,
    seed: int | None = None,
    scale: float | None = None,
    return_lse: bool = False,
):
    """Causal attention with dropout of the weights, for training.

    Takes and returns what `attention` does, on any device; computes in float32, or float64 for float64 inputs.
    """
    with torch.autocast(q.device.type, enabled=False):
        out, lse = _attention(q, k, v, dropout_p=dropout_p, seed=seed, scale=scale)
    return (out, lse) if return_lse else out


def _attention(q, k, v, *, dropout_p, seed, scale, rounds_to=None):
    """Out and LSE; `rounds_to` is a dtype that operands of products are rounded to, as the kernels round them."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    out_dtype, lse_dtype = q.dtype, dtype
    q, k, v = (x.to(dtype) for x in (q, k, v))
    out, lse = _attend(q, k, v, dropout_p, seed, scale, rounds_to)
    return out.to(out_dtype), lse.to(lse_dtype)


def _attend(q, k, v, dropout_p, seed, scale, rounds_to):
    """Attention of a batch whose sequences have one length: q (B, Tq, Hq, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv)."""
    batch = q.shape[0]
    q_len = q.shape[1]
    k_len = k.shape[1]
    heads = q.shape[2]
    dtype = q.dtype
    device = q.device
    b = torch.arange(batch, device=device)[:, None, None, None]
    h = torch.arange(heads, device=device)[:, None, None]
    q_pos = torch.arange(k_len - q_len, k_len, device=device)[:, None]
    k_pos = torch.arange(k_len, device=device)
    if q_len == 0 or k_len == 0:  # no place that a term could speak of
        lse = q.new_full((q.shape[0], heads, q_len), -math.inf)
        return torch.einsum("bihd,bjhd,bjhe->bihe", q, k, v), lse

    score = _round(torch.einsum("bihd,bjhd->bhij", q, k), rounds_to, backward=True) * scale
    keep = k_pos <= q_pos  # causal
    score = torch.where(keep, score, -math.inf)
    used = None
    if dropout_p > 0:
        used = _used(dropout_p, seed, b, h, q_pos - (k_len - q_len), k_pos).to(dtype)
    if rounds_to is None:
        weight, lse = _softmax(score)
        weight = weight if used is None else weight * used
        out = torch.einsum("bhij,bjhd->bhid", weight, v)
    else:
        out, lse = _Rounded.apply(score, v, rounds_to, used)
    return out.transpose(1, 2), lse


def _used(dropout_p, seed, b, h, row, k):
    """What becomes of each weight: 0, or what makes up for the share that is dropped, a whole number of 65536ths."""
    words = _philox(seed, k // 8, row, h, b)
    lower, upper = torch.where(k % 4 < 2, words[0], words[1]), torch.where(k % 4 < 2, words[2], words[3])
    word = torch.where(k % 8 < 4, lower, upper)
    half = torch.where(k % 2 == 0, word & 0xFFFF, word >> 16)
    dropped = min(int(dropout_p * 65536 + 0.5), 65535)
    return (half >= dropped) * (65536 / (65536 - dropped))


def _philox(seed, *counter):
    """Four random 32-bit words of a seed and four whole numbers: Philox4x32 in seven rounds."""
    c0, c1, c2, c3 = counter
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(7):
        (high0, low0), (high2, low2) = _product(c0, 0xD2511F53), _product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high2 ^ c1 ^ key[0], low2, high0 ^ c3 ^ key[1], low0
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c0, c1, c2, c3


def _product(x, factor):
    """The upper and the lower half of a product of two 32-bit numbers, by pieces that int64 holds."""
    upper, lower = (x >> 16) * factor, (x & 0xFFFF) * factor
    return (upper + (lower >> 16)) >> 16, (((upper & 0xFFFF) << 16) + lower) & 0xFFFFFFFF


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


def _rounded(score, v, dtype, used):
    """Softmax and product with v as kernels compute them: in log2 units, with rounded weights."""
    log2e = 1 / math.log(2)
    weight, lse = _softmax(score * log2e, torch.exp2, torch.log2)
    top = weight.amax(-1, keepdim=True)
    top = torch.where(top == 0, 1.0, top)
    weight = (weight / top).to(dtype).to(v.dtype)
    weight = weight if used is None else weight * used
    return torch.einsum("bhij,bjhd->bhid", weight, v) * top, lse / log2e


class _Rounded(torch.autograd.Function):
    """The same, with gradients that make rounded weights of the LSE again."""

    @staticmethod
    def forward(ctx, score, v, dtype, used):
        out, lse = _rounded(score, v, dtype, used)
        ctx.save_for_backward(score, v, out.to(dtype).to(v.dtype), lse, used)
        ctx.dtype = dtype
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        score, v, out, lse, used = ctx.saved_tensors
        lse = torch.where(lse == -math.inf, math.inf, lse)
        log2e = 1 / math.log(2)
        weight = torch.exp2(score * log2e - (lse * log2e)[..., None])
        rounded = weight.to(ctx.dtype).to(v.dtype)
        dweight = torch.einsum("bhid,bjhd->bhij", dout, v)
        rounded, dweight = (x if used is None else x * used for x in (rounded, dweight))
        dv = torch.einsum("bhij,bhid->bjhd", rounded, dout)
        delta = (out * dout).sum(-1) - dlse
        return weight * (dweight - delta[..., None]), dv, None, None


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
