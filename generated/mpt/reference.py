# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/mpt.yaml
#   content hash  d278842151c5496e
#   text hash     d19ea8dd3325602f
#   render with   attnforge render specs/mpt.yaml
"""The same attention in plain PyTorch: slow, simple, differentiated by autograd."""

from __future__ import annotations

import math

import torch


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    prefix_len: torch.Tensor,
    slopes: torch.Tensor | None = None,
    k_lens: torch.Tensor | None = None,
    k_starts: torch.Tensor | None = None,
    q_start: torch.Tensor | int | None = None,
    scale: float | None = None,
    return_lse: bool = False,
):
    """Attention with a prefix and linear biases.

    Takes and returns what `attention` does, on any device; computes in float32, or in float64 for float64 inputs.
    The same holds under autocast, which first casts q, k and v to its dtype.
    """
    return _reference(q, k, v, k_lens, k_starts, q_start, prefix_len, slopes, scale, return_lse)


def _reference(q, k, v, k_lens, k_starts, q_start, in_prefix_len, in_slopes, scale, return_lse):
    """The body of `reference`; from here on, names from the spec begin with `in_`, as in the kernels."""
    _check(q, k, v)
    # not all devices have an autocast of their own
    device_type = q.device.type if torch.amp.is_autocast_available(q.device.type) else "cpu"
    if torch.is_autocast_enabled(device_type):
        rounded = torch.get_autocast_dtype(device_type)
        q, k, v = (x if x.dtype == torch.float64 else x.to(rounded) for x in (q, k, v))
    with torch.autocast(device_type, enabled=False):
        out_dtype, dtype = q.dtype, torch.promote_types(q.dtype, torch.float32)
        heads, device = q.shape[-2], q.device
        if in_slopes is None:
            in_slopes = (
                lambda h: torch.where(
                    h < 2 ** math.floor(math.log(heads) / math.log(2) + 1e-05),
                    2 ** ((-8 * (h + 1)).to(dtype) / 2 ** math.floor(math.log(heads) / math.log(2) + 1e-05)),
                    2
                    ** (
                        -4
                        * (2 * (h.to(dtype) - 2 ** math.floor(math.log(heads) / math.log(2) + 1e-05)) + 1)
                        / 2 ** math.floor(math.log(heads) / math.log(2) + 1e-05)
                    ),
                )
            )(torch.arange(heads, device=device)).to(dtype)
        if scale is None:
            scale = 1 / math.sqrt(q.shape[-1])
        q, k, v = (x.to(dtype) for x in (q, k, v))
        if k_lens is k_starts is q_start is None:
            out, lse = _attend(q, k, v, in_prefix_len, in_slopes, scale, k.shape[1] - q.shape[1])
        else:
            out = q.new_zeros(*q.shape[:3], v.shape[3])
            lse = v.new_full((q.shape[0], q.shape[2], q.shape[1]), -math.inf)
            for entry, queries, keys, q_begin in _parts(q, k, k_lens, k_starts, q_start):
                one, rows, seen = slice(*entry), slice(*queries), slice(*keys)
                out[one, rows], lse[one, :, rows] = _attend(
                    q[one, rows],
                    k[one, seen],
                    v[one, seen],
                    _part(in_prefix_len, 1, {0: entry}),
                    in_slopes,
                    scale,
                    q_begin,
                )
        # an empty sum of each, 0, connects to autograd the inputs that no result depends on
        nothing = sum(x[None][:0].sum() for x in (q, k, v, in_slopes))
        out, lse = (out + nothing).to(out_dtype), (lse + nothing).to(dtype)
    return (out, lse) if return_lse else out


def _check(q, k, v):
    """Raises an error for shapes that do not fit together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(f"{name}: expected 4 axes (batch, tokens, heads, head size), got shape {tuple(x.shape)}")
    if k.shape[0] != q.shape[0]:
        raise ValueError(f"k: expected a batch of {q.shape[0]} as q has, got {k.shape[0]}")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k: expected a head size of {q.shape[-1]} as q has, got {k.shape[-1]}")
    if k.shape[-2] != q.shape[-2]:
        raise ValueError(f"k: expected {q.shape[-2]} heads as q has, got {k.shape[-2]}")
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"v: expected shape ({', '.join(map(str, k.shape[:-1]))}, Dv) beside k, got {tuple(v.shape)}")


def _attend(q, k, v, in_prefix_len, in_slopes, scale, q_begin):
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
    if 0 in (q.shape[0], q_len, k_len):  # no element for terms to index
        lse = q.new_full((q.shape[0], heads, q_len), -math.inf)
        return q.new_zeros(q.shape[0], q_len, heads, v.shape[-1]), lse
    in_slopes = in_slopes.to(dtype)

    score = _scores(q, k) * scale
    keep = (k_pos <= q_pos) | (k_pos < in_prefix_len[:, None, None, None])  # prefix_lm
    score = score - in_slopes[:, None, None] * torch.abs(q_pos - k_pos)  # alibi
    # a score that float32 cannot hold in log2 units: kernels treat it as hidden
    score = torch.where(score < torch.finfo(torch.float32).min * math.log(2), -math.inf, score)
    score = torch.where(keep, score, -math.inf)
    out, lse = _weighted(score, v)
    return out.transpose(1, 2), lse


def _parts(q, k, k_lens, k_starts, q_start):
    """For each batch entry, its index, its rows of queries and of keys, each as a range, and its first position.

    If `q_start` gives positions, queries without a key at their position are left out.
    """
    batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]

    def numbers(x, otherwise):
        return [otherwise] * batch if x is None else torch.as_tensor(x).expand(batch).tolist()

    given = zip(numbers(k_starts, 0), numbers(k_lens, keys), numbers(q_start, None), strict=True)
    for entry, (first, end, begin) in enumerate(given):
        first, end = (min(max(row, 0), keys) for row in (first, end))
        end = max(first, end)
        begin = end - first - queries if begin is None else begin
        rows = range(queries)
        if q_start is not None:
            rows = [row for row in rows if 0 <= begin + row < end - first]
        row, past = (rows[0], rows[-1] + 1) if rows else (0, 0)
        yield (entry, entry + 1), (row, past), (first, end), begin + row if rows else 0


def _part(x, rank, places):
    """x with `rank` axes, cut to ranges along some of them; an axis of size 1 stands for any size."""
    x = x[(None,) * (rank - x.dim())]
    for axis, (first, end) in places.items():
        x = x if x.shape[axis] == 1 else x.narrow(axis, first, end - first)
    return x


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
