# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/full.yaml
#   content hash  ad6da4bc15345c0b
#   text hash     310e3dc88ad5b8a3
#   render with   attnforge render specs/full.yaml
"""The variant as a layer: `attention` with projections and whatever else a layer has."""

from __future__ import annotations

import torch

from .api import attention


class Attention(torch.nn.Module):
    """Softmax attention without a mask.

    hidden_size: columns of x and of the result
    num_heads, num_kv_heads: heads of queries, and of keys and values, which are as many if None
    head_dim: columns of a head, hidden_size // num_heads if None
    v_head_dim: columns of a head of values, head_dim if None
    bias: whether q_proj, k_proj, v_proj, o_proj and g_proj have one
    qk_norm: whether q_norm and k_norm, each an RMSNorm over head_dim, follow q_proj and k_proj
    norm_eps: added to their mean squares
    output_gate: whether sigmoid(g_proj(x)) multiplies the input of o_proj
    scale: factor of q·k, 1 / sqrt(head_dim) if None
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        v_head_dim: int | None = None,
        bias: bool = False,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        output_gate: bool = False,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if num_heads < 1:
            raise ValueError(f"num_heads: expected at least 1, got {num_heads}")
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            raise ValueError(f"num_kv_heads: expected a divisor of the {num_heads} heads, got {num_kv_heads}")
        if head_dim is None and hidden_size % num_heads:
            raise ValueError(f"head_dim: expected one, as {hidden_size} columns do not make {num_heads} equal heads")
        head_dim = hidden_size // num_heads if head_dim is None else head_dim
        v_head_dim = head_dim if v_head_dim is None else v_head_dim
        if head_dim < 1 or v_head_dim < 1:
            raise ValueError(f"head_dim, v_head_dim: expected at least 1, got {head_dim} and {v_head_dim}")
        self.hidden_size = hidden_size
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim, self.v_head_dim, self.scale = head_dim, v_head_dim, scale
        made = {"device": device, "dtype": dtype}
        self.q_proj = torch.nn.Linear(hidden_size, num_heads * head_dim, bias=bias, **made)
        self.k_proj = torch.nn.Linear(hidden_size, num_kv_heads * head_dim, bias=bias, **made)
        self.v_proj = torch.nn.Linear(hidden_size, num_kv_heads * v_head_dim, bias=bias, **made)
        self.o_proj = torch.nn.Linear(num_heads * v_head_dim, hidden_size, bias=bias, **made)
        self.q_norm = torch.nn.RMSNorm(head_dim, eps=norm_eps, **made) if qk_norm else torch.nn.Identity()
        self.k_norm = torch.nn.RMSNorm(head_dim, eps=norm_eps, **made) if qk_norm else torch.nn.Identity()
        self.g_proj = torch.nn.Linear(hidden_size, num_heads * v_head_dim, bias=bias, **made) if output_gate else None

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor | None = None,
        *,
        k_lens: torch.Tensor | None = None,
        k_starts: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The layer's result for x (B, T, hidden_size), in the same shape.

        context: (B, Tk, hidden_size), optional; keys and values are computed from it, not from x
        k_lens, k_starts: int32 (B,), optional; entry b has the keys in rows [k_starts[b], k_lens[b])
        """
        if x.dim() != 3:
            raise ValueError(f"x: expected shape (B, T, hidden_size), got {tuple(x.shape)}")
        if x.shape[-1] != self.hidden_size:
            raise ValueError(f"x: expected {self.hidden_size} columns, got {x.shape[-1]}")
        keys = x if context is None else context
        if keys.dim() != 3 or keys.shape[-1] != self.hidden_size:
            raise ValueError(f"context: expected shape (B, Tk, {self.hidden_size}), got {tuple(keys.shape)}")
        # view could not infer the number of heads if there are no tokens
        q = self.q_norm(torch.unflatten(self.q_proj(x), -1, (-1, self.head_dim)))
        k = self.k_norm(torch.unflatten(self.k_proj(keys), -1, (-1, self.head_dim)))
        v = torch.unflatten(self.v_proj(keys), -1, (-1, self.v_head_dim))
        out = attention(
            q,
            k,
            v,
            k_lens=k_lens,
            k_starts=k_starts,
            q_start=_start(k_lens, k_starts) if context is None else None,
            scale=self.scale,
        )
        out = out.flatten(-2)
        if self.g_proj is not None:
            out = out * self.g_proj(x).sigmoid()
        return self.o_proj(out)

    def extra_repr(self) -> str:
        """The text of the module in its repr, besides its submodules."""
        return f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"


def _start(k_lens, k_starts):
    """The position of row 0, counted from an entry's first token; None if nothing is padded."""
    if k_starts is not None:
        return -k_starts
    return None if k_lens is None else 0
