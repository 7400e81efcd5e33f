"""The two kinds of attention with `scaled_dot_product_attention`, masks and biases of T x T made in PyTorch."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def near(q: Tensor, k: Tensor, v: Tensor, *, cos: Tensor, sin: Tensor, window: int) -> Tensor:
    """The attention of specs/near.yaml."""
    back = distances(q)
    return attend(rotated(q, cos, sin), rotated(k, cos, sin), v, (back >= 0) & (back < window))


def far(q: Tensor, k: Tensor, v: Tensor, *, log_decay: Tensor) -> Tensor:
    """The attention of the shipped variant `forgetting_transformer`."""
    total = log_decay.cumsum(1).transpose(1, 2)  # (B, H, T)
    bias = total[..., :, None] - total[..., None, :]
    return attend(q, k, v, bias.masked_fill(distances(q) < 0, -math.inf).to(q.dtype))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention of tensors (B, T, heads, D), of which k and v may have fewer heads than q."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, T, heads, D) rotated by the angles of each position, in pairs of components from both halves."""
    cos, sin = cos[: x.shape[1], None], sin[: x.shape[1], None]
    one, two = x.float().chunk(2, -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1).to(x.dtype)


def distances(q: Tensor) -> Tensor:
    """How far each key is before each query, (T, T)."""
    place = torch.arange(q.shape[1], device=q.device)
    return place[:, None] - place
