"""Tensors with the same values, or fewer that stand for all, in memory as users may have them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch


def changed(x: torch.Tensor, chance: random.Random, shared: Sequence[int] = ()) -> torch.Tensor:
    """A tensor in another layout, with size 1 along axes that are `shared`."""
    learned, x = x.requires_grad, x.detach()
    for axis in shared:
        x = x.narrow(axis, 0, 1)
    if not x.dim():
        return x.requires_grad_(learned)
    axis, axes = chance.randrange(x.dim()), chance.sample(range(x.dim()), x.dim())
    match chance.choice(["contiguous", "permuted", "shifted", "expanded", "sliced", "in steps"]):
        case "contiguous":
            x = x.contiguous()
        case "permuted":
            x = x.permute(axes).contiguous().permute([axes.index(i) for i in range(x.dim())])
        case "shifted":
            x = torch.empty(x.numel() + 3, dtype=x.dtype)[3:].view(x.shape).copy_(x)
        case "expanded":
            x = x.narrow(axis, 0, 1).expand(x.shape)
        case "sliced":
            x = torch.cat((x, _wrong(x)), axis).narrow(axis, 0, x.shape[axis])
        case "in steps":
            x = torch.stack((x, _wrong(x)), axis + 1).select(axis + 1, 0)
    return x.requires_grad_(learned)


def _wrong(x: torch.Tensor) -> torch.Tensor:
    """Values that nobody is to read."""
    return torch.full_like(x, torch.nan) if x.is_floating_point() else x.flip(0)
