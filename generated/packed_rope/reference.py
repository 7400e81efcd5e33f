# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_rope.yaml
#   content hash  d8aca0e757b86f35
#   text hash     570821431a4dac46
#   render with   attnforge render specs/packed_rope.yaml
"""The same attention in plain PyTorch: slow, simple, differentiated by autograd."""

from __future__ import annotations

import math

import torch


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    cu_seqlens: torch.Tensor | None = None,
    max_seqlen: int | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
):
    """Causal attention with rotary embedding for sequences packed into one tensor.

    Takes and returns what `attention` does, on any device; computes in float32, or in float64 for float64 inputs.
    The same holds under autocast, which first casts q, k and v to its dtype.
    """
    _check(q, k, v)
    # not all devices have an autocast of their own
    device_type = q.device.type if torch.amp.is_autocast_available(q.device.type) else "cpu"
    if torch.is_autocast_enabled(device_type):
        rounded = torch.get_autocast_dtype(device_type)
        q, k, v = (x if x.dtype == torch.float64 else x.to(rounded) for x in (q, k, v))
    with torch.autocast(device_type, enabled=False):
        out_dtype, dtype = q.dtype, torch.promote_types(q.dtype, torch.float32)
        if scale is None:
            scale = 1 / math.sqrt(q.shape[-1])
        q, k, v = (x.to(dtype) for x in (q, k, v))
        if cu_seqlens is not None:
            cu_seqlens_q = cu_seqlens_k = cu_seqlens
            max_seqlen_q = max_seqlen_k = max_seqlen
        cuts_q, cuts_k = cu_seqlens_q.clamp(0, q.shape[0]).tolist(), cu_seqlens_k.clamp(0, k.shape[0]).tolist()
        rows, outs, lses = [], [], []
        for q_first, q_end, k_first, k_end in zip(cuts_q, cuts_q[1:], cuts_k, cuts_k[1:]):
            q_end = min(max(q_end, q_first), q_first + max_seqlen_q)
            k_end = min(max(k_end, k_first), k_first + max_seqlen_k)
            out, lse = _attend(
                q[None, q_first:q_end],
                k[None, k_first:k_end],
                v[None, k_first:k_end],
                cos,
                sin,
                None if positions is None else positions[None, k_first:k_end],
                scale,
                k_end - k_first - (q_end - q_first),
            )
            rows.append(torch.arange(q_first, q_end, device=q.device))
            outs.append(out[0])
            lses.append(lse[0])
        # rows of no sequence
        out = q.new_zeros(q.shape[0], q.shape[1], v.shape[2])
        lse = v.new_full((q.shape[1], q.shape[0]), -math.inf)
        if rows:
            out = out.index_copy(0, torch.cat(rows), torch.cat(outs))
            lse = lse.index_copy(1, torch.cat(rows), torch.cat(lses, 1))
        # an empty sum of each, 0, connects to autograd the inputs that no result depends on
        nothing = sum(x[None][:0].sum() for x in (q, k, v))
        out, lse = (out + nothing).to(out_dtype), (lse + nothing).to(dtype)
    return (out, lse) if return_lse else out


def _check(q, k, v):
    """Raises an error for shapes that do not fit together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 3:
            raise ValueError(f"{name}: expected 3 axes (tokens, heads, head size), got shape {tuple(x.shape)}")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k: expected a head size of {q.shape[-1]} as q has, got {k.shape[-1]}")
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise ValueError(f"k: expected a number of heads that divides q's {q.shape[-2]}, got {k.shape[-2]}")
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"v: expected shape ({', '.join(map(str, k.shape[:-1]))}, Dv) beside k, got {tuple(v.shape)}")


def _attend(q, k, v, cos, sin, positions, scale, q_begin):
    """Attention of a batch with sequences of equal length: q (B, Tq, Hq, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv).

    `q_begin` is the position of the first query.
    """
    q_len = q.shape[1]
    k_len = k.shape[1]
    heads = q.shape[2]
    dtype = q.dtype
    device = q.device
    q_pos = torch.arange(q_begin, q_begin + q_len, device=device)[:, None]
    k_pos = torch.arange(k_len, device=device)
    q, k = _rotated(q, k, cos.to(dtype), sin.to(dtype), positions, q_pos[:, 0], k_pos, q_begin)
    k, v = (x.repeat_interleave(heads // x.shape[2], 2) for x in (k, v))
    if 0 in (q.shape[0], q_len, k_len):  # no element for terms to index
        lse = q.new_full((q.shape[0], heads, q_len), -math.inf)
        return q.new_zeros(q.shape[0], q_len, heads, v.shape[-1]), lse

    score = _scores(q, k) * scale
    keep = k_pos <= q_pos  # causal
    score = torch.where(keep, score, -math.inf)
    out, lse = _weighted(score, v)
    return out.transpose(1, 2), lse


def _scores(q, k):
    """q·k for each query and key, (B, Hq, Tq, Tk)."""
    return torch.einsum("bihd,bjhd->bhij", q, k)


def _weighted(score, v):
    """The softmax of scores times v, and its LSE; a row of only -inf gives 0, -inf and gradients of 0."""
    top = score.detach().amax(-1, keepdim=True)
    top = torch.where(top == -math.inf, 0.0, top)
    weight = torch.exp(score - top)
    total = weight.sum(-1, keepdim=True)
    visible = total != 0
    total = torch.where(visible, total, 1.0)
    lse = torch.where(visible, top + torch.log(total), -math.inf)
    weight = weight / total
    return torch.einsum("bhij,bjhd->bhid", weight, v), lse[..., 0]


def _rotated(q, k, cos, sin, positions, q_pos, k_pos, q_begin):
    """q and k with pairs of components rotated by the angles of their positions."""
    if positions is None:
        q_rows, k_rows = q_pos[None], k_pos[None]
    else:
        k_rows = positions.expand(-1, k.shape[1])
        before = k_rows.new_zeros(len(k_rows), max(-q_begin, 0))  # queries before the first key
        q_rows = torch.cat((before, k_rows[:, max(q_begin, 0) : max(q_begin + q.shape[1], 0)]), 1)
    return _rotate(q, cos, sin, q_rows), _rotate(k, cos, sin, k_rows)


def _rotate(x, cos, sin, rows):
    rows = rows.long().clamp(0, cos.shape[0] - 1)
    cos, sin = cos[rows][:, :, None], sin[rows][:, :, None]  # [B or 1, T, 1, dims / 2]
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)
