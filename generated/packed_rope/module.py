# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_rope.yaml
#   content hash  f23a62dd54951fb2
#   text hash     814831cc5ad8d9b0
#   render with   attnforge render specs/packed_rope.yaml
"""The variant as a layer: `attention` with projections and whatever else a layer has."""

from __future__ import annotations

import torch

from . import arguments
from .api import attention


class Attention(torch.nn.Module):
    """Causal attention with rotary embedding for sequences packed into one tensor.

    hidden_size: columns of x and of the result
    num_heads, num_kv_heads: heads of queries, and of keys and values, which are as many if None
    head_dim: columns of a head, hidden_size // num_heads if None
    v_head_dim: columns of a head of values, head_dim if None
    bias: whether q_proj, k_proj, v_proj, o_proj and g_proj have one
    qk_norm: whether q_norm and k_norm, each an RMSNorm over head_dim, follow q_proj and k_proj
    norm_eps: added to their mean squares
    output_gate: whether sigmoid(g_proj(x)) multiplies the input of o_proj
    scale: factor of q·k, 1 / sqrt(head_dim) if None
    rope_theta: the base of the angles
    max_positions: number of positions that have angles at first; longer calls extend them
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
        rope_theta: float = 10000.0,
        max_positions: int = 2048,
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
        if head_dim % 2:
            raise ValueError(f"head_dim: expected an even number, as components turn in pairs, got {head_dim}")
        if not rope_theta > 0:
            raise ValueError(f"rope_theta: expected more than 0, got {rope_theta}")
        if max_positions < 0:
            raise ValueError(f"max_positions: expected at least 0, got {max_positions}")
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
        self.rope_theta = rope_theta
        cos, sin = self.angles(max_positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(
        self,
        x: torch.Tensor,
        *,
        cu_seqlens: torch.Tensor,
        max_seqlen: int,
        positions: torch.Tensor | None = None,
        tables: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """The layer's result for x (N, hidden_size), sequences one after the other, in the same shape.

        cu_seqlens, max_seqlen: int32 (S + 1,), where each sequence begins and the last ends, and the longest one's length
        positions: int (N,), rows of the tables, if not counted from 0
        tables: (cos, sin) in place of the layer's own, for example from `angles` of a model's first layer
        """
        if x.dim() != 2:
            raise ValueError(f"x: expected shape (N, hidden_size), got {tuple(x.shape)}")
        if x.shape[-1] != self.hidden_size:
            raise ValueError(f"x: expected {self.hidden_size} columns, got {x.shape[-1]}")
        cos, sin = (
            self._tables(arguments.as_int("max_seqlen", max_seqlen, minimum=0, maximum=2**28), x.device)
            if tables is None
            else tables
        )
        terms = {
            "cos": cos,
            "sin": sin,
            "positions": positions,
        }
        # view could not infer the number of heads if there are no tokens
        q = self.q_norm(torch.unflatten(self.q_proj(x), -1, (-1, self.head_dim)))
        k = self.k_norm(torch.unflatten(self.k_proj(x), -1, (-1, self.head_dim)))
        v = torch.unflatten(self.v_proj(x), -1, (-1, self.v_head_dim))
        out = attention(q, k, v, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen, **terms, scale=self.scale)
        out = out.flatten(-2)
        if self.g_proj is not None:
            out = out * self.g_proj(x).sigmoid()
        return self.o_proj(out)

    def angles(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin) of positions below count, float32 (count, rotated columns / 2); a subclass may override it."""
        even = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=self.q_proj.weight.device)
        rows = torch.arange(count, dtype=torch.float32, device=even.device)
        turned = torch.outer(rows, 1 / self.rope_theta ** (even / self.head_dim))
        return turned.cos(), turned.sin()

    def _tables(self, count, device):
        """The layer's own tables on the device of its input, for at least `count` positions."""
        if self.cos.shape[0] < count:
            self._make_tables(max(count, 2 * self.cos.shape[0]))
        elif self.cos.device != device:  # for example if a state was assigned to a layer on meta
            self._make_tables(self.cos.shape[0])
        return self.cos, self.sin

    def _make_tables(self, count):
        """Make tables of `count` positions; tables made in inference mode would keep the layer from being trained."""
        with torch.inference_mode(False):
            self.cos, self.sin = self.angles(count)

    def _apply(self, fn, recurse=True):
        """Moves the module; tables stay float32, and have values even if parameters have none yet."""
        super()._apply(fn, recurse)
        self._make_tables(self.cos.shape[0])
        return self

    def extra_repr(self) -> str:
        """The text of the module in its repr, besides its submodules."""
        return f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"
