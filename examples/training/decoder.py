"""A small decoder with two alternating kinds of layers: one sees nearby tokens, the other all earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attnforge

from . import sdpa

NEAR = Path(__file__).parent / "specs" / "near.yaml"
Attention = Callable[..., Tensor]


@dataclass(frozen=True)
class Sizes:
    """The shape of a decoder."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    window: int  # of the layers that see nearby tokens
    length: int


def attentions(which: str) -> tuple[Attention, Attention]:
    """The attention of near and of far layers: rendered kernels for `ours`, PyTorch's own for `sdpa`."""
    if which == "sdpa":
        return sdpa.near, sdpa.far
    return attnforge.build(NEAR).attention, attnforge.build("forgetting_transformer").attention


class Heads(nn.Module):
    """The projections around attention."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.shapes = [(sizes.heads, sizes.head_size), *[(sizes.kv_heads, sizes.head_size)] * 2]
        self.qkv = nn.Linear(sizes.width, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_size, bias=False)
        self.out = nn.Linear(sizes.heads * sizes.head_size, sizes.width, bias=False)

    def project(self, x: Tensor) -> list[Tensor]:
        """q, k and v, (B, T, heads, head size)."""
        parts = self.qkv(x).split([heads * size for heads, size in self.shapes], -1)
        return [part.unflatten(-1, shape) for part, shape in zip(parts, self.shapes, strict=True)]


class Near(Heads):
    """Attention to a window, with rotary embedding."""

    def __init__(self, sizes: Sizes, attention: Attention) -> None:
        super().__init__(sizes)
        self.attention, self.window = attention, sizes.window
        pairs = 10000 ** (-torch.arange(0, sizes.head_size, 2) / sizes.head_size)
        angles = torch.arange(sizes.length)[:, None] * pairs
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width)."""
        q, k, v = self.project(x)
        return self.out(self.attention(q, k, v, cos=self.cos, sin=self.sin, window=self.window).flatten(2))


class Far(Heads):
    """Attention to all earlier tokens with a learned decay: each head decides at each token how fast it forgets."""

    def __init__(self, sizes: Sizes, attention: Attention) -> None:
        super().__init__(sizes)
        self.attention = attention
        self.keep = nn.Linear(sizes.width, sizes.heads)
        nn.init.constant_(self.keep.bias, 4.0)  # forgets little at first

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width)."""
        q, k, v = self.project(x)
        # float32 even under autocast: the kernels sum these over all tokens
        log_decay = F.logsigmoid(self.keep(x).float())
        return self.out(self.attention(q, k, v, log_decay=log_decay).flatten(2))


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a residual connection."""

    def __init__(self, width: int, attention: Heads) -> None:
        super().__init__()
        self.attention = attention
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width)."""
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Decoder(nn.Sequential):
    """Symbols (B, T) to logits (B, T, symbols)."""

    def __init__(self, symbols: int, sizes: Sizes, which: str) -> None:
        near, far = attentions(which)
        layers = [Far(sizes, far) if i % 2 else Near(sizes, near) for i in range(sizes.layers)]
        super().__init__(
            nn.Embedding(symbols, sizes.width),
            *(Block(sizes.width, layer) for layer in layers),
            nn.RMSNorm(sizes.width),
            nn.Linear(sizes.width, symbols, bias=False),
        )
