# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_encoder.yaml
#   content hash  258694a273488900
#   text hash     0e16f5a3a17ef1c4
#   render with   attnforge render specs/t5_encoder.yaml
"""The same attention in plain PyTorch: slow, simple, differentiated by autograd."""

from __future__ import annotations

import math

import torch


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    rel_bias: torch.Tensor,
    scale: float | None = None,
    return_lse: bool = False,
):
    """Attention with T5's learned biases for distances in both directions.

    Takes and returns what `attention` does, on any device; computes in float32, or float64 for float64 inputs.
    """
    return _reference(q, k, v, rel_bias, scale, return_lse)


def _reference(q, k, v, in_rel_bias, scale, return_lse):
    """What `reference` does; names from the spec begin with `in_` from here on, as in the kernels."""
    with torch.autocast(q.device.type, enabled=False):
        out_dtype, dtype = q.dtype, torch.promote_types(q.dtype, torch.float32)
        if scale is None:
            scale = 1 / math.sqrt(q.shape[-1])
        q, k, v = (x.to(dtype) for x in (q, k, v))
        out, lse = _attend(q, k, v, in_rel_bias, scale)
        out, lse = out.to(out_dtype), lse.to(dtype)
    return (out, lse) if return_lse else out


def _attend(q, k, v, in_rel_bias, scale):
    """Attention of a batch whose sequences have one length: q (B, Tq, Hq, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv)."""
    q_len = q.shape[1]
    k_len = k.shape[1]
    heads = q.shape[2]
    dtype = q.dtype
    device = q.device
    h = torch.arange(heads, device=device)[:, None, None]
    q_pos = torch.arange(k_len - q_len, k_len, device=device)[:, None]
    k_pos = torch.arange(k_len, device=device)
    if q_len == 0 or k_len == 0:  # no place that a term could speak of
        lse = q.new_full((q.shape[0], heads, q_len), -math.inf)
        return torch.einsum("bihd,bjhd,bjhe->bihe", q, k, v), lse
    in_rel_bias = in_rel_bias.to(dtype).expand(heads, -1)

    score = _scores(q, k) * scale
    score = (
        score
        + in_rel_bias[
            h,
            (
                torch.where(k_pos > q_pos, 16, 0)
                + torch.where(
                    torch.abs(q_pos - k_pos) < 8,
                    torch.abs(q_pos - k_pos),
                    torch.minimum(
                        torch.as_tensor(15),
                        8
                        + _whole_floor(
                            torch.log(torch.abs(q_pos - k_pos).to(dtype) / 8) / math.log(128 / 8) * 8 + 1e-05
                        ),
                    ),
                )
            ).clamp(0, 31),
        ]
    )  # relative_bias
    # what float32 cannot hold in log2 units: kernels take it for hidden
    score = torch.where(score < torch.finfo(torch.float32).min * math.log(2), -math.inf, score)
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


def _whole_floor(x):
    """floor(x) as an integer, also of an infinity or a NaN."""
    return torch.floor(x).nan_to_num(-(2.0**28)).clamp(-(2.0**28), 2.0**28).long()
