# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal.yaml
#   content hash  941cf7a3f0f7e6f7
#   text hash     595675ede7b004cc
#   render with   attnforge render specs/causal.yaml
"""The variant as a layer: `attention` with projections and whatever else a layer has."""

from __future__ import annotations

import functools

import torch

from . import arguments, context_parallel, decode_arguments
from .api import attention
from .decode import append, attend_with_cache


class Attention(torch.nn.Module):
    """Causal attention with grouped heads.

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
        *,
        group=None,
        zigzag: bool = True,
        k_lens: torch.Tensor | None = None,
        k_starts: torch.Tensor | None = None,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """The layer's result for x (B, T, hidden_size), in the same shape.

        group: the ranks among which tokens are divided, x being this rank's part; x has all tokens if None
        zigzag: whether each rank has a stretch of tokens from either end, instead of a single stretch
        k_lens, k_starts: int32 (B,), optional; entry b has the tokens in rows [k_starts[b], k_lens[b])
        cache: from `new_cache`, optional; x has the tokens that follow those in it
        """
        if cache is not None and group is not None:
            raise ValueError("cache: expected none beside group, as a cache holds the tokens of one rank")
        if x.dim() != 3:
            raise ValueError(f"x: expected shape (B, T, hidden_size), got {tuple(x.shape)}")
        if x.shape[-1] != self.hidden_size:
            raise ValueError(f"x: expected {self.hidden_size} columns, got {x.shape[-1]}")
        attend = (
            attention if group is None else functools.partial(context_parallel.attention, group=group, zigzag=zigzag)
        )
        # view could not infer the number of heads if there are no tokens
        q = self.q_norm(torch.unflatten(self.q_proj(x), -1, (-1, self.head_dim)))
        k = self.k_norm(torch.unflatten(self.k_proj(x), -1, (-1, self.head_dim)))
        v = torch.unflatten(self.v_proj(x), -1, (-1, self.v_head_dim))
        if cache is not None:
            if not (k_lens is k_starts is None):
                raise ValueError("cache: expected no k_lens and k_starts beside it; Cache.keep leaves padding out")
            out = self._decode(q, k, v, cache)
        else:
            out = attend(q, k, v, k_lens=k_lens, k_starts=k_starts, q_start=_start(k_lens, k_starts), scale=self.scale)
        out = out.flatten(-2)
        if self.g_proj is not None:
            out = out * self.g_proj(x).sigmoid()
        return self.o_proj(out)

    def new_cache(self, batch: int, size: int, dtype: torch.dtype | None = None) -> Cache:
        """An empty cache with room for `size` tokens of each of `batch` sequences."""
        if dtype not in (None, *arguments.FLOATS):
            raise TypeError(f"dtype: expected float16, bfloat16 or float32, got {arguments.plain(dtype)}")
        batch = arguments.as_int("batch", batch, minimum=0)
        size = arguments.as_int("size", size, minimum=0)
        weight, heads = self.k_proj.weight, self.num_kv_heads
        if dtype is None:
            dtype = arguments.cast(weight.new_empty(0))[0].dtype  # that of the projections' results
        k, v = (weight.new_empty((batch, size, heads, n), dtype=dtype) for n in (self.head_dim, self.v_head_dim))
        return Cache(k, v)

    def _decode(self, q, k, v, cache):
        """Attention of new tokens, which are added to the cache."""
        if torch.is_grad_enabled():
            decode_arguments.refuse_gradients(q=q, k=k, v=v)
        q, k, v = arguments.cast(q, k, v)  # as `attention` does
        cache.append(k, v)
        if cache.longest == 0:
            # the cache was empty: a prompt reads nothing else
            out = attention(q, k, v, scale=self.scale)
        else:
            out = attend_with_cache(q, cache.k, cache.v, cache.seq_lens + q.shape[1], scale=self.scale)
        cache.grow(q.shape[1])  # only now: a call that is refused leaves the cache unchanged
        return out

    def extra_repr(self) -> str:
        """The text of the module in its repr, besides its submodules."""
        return f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"


def _start(k_lens, k_starts):
    """The position of row 0, counted from an entry's first token; None if nothing is padded."""
    if k_starts is not None:
        return -k_starts
    return None if k_lens is None else 0


class Cache:
    """Keys and values of the tokens that a layer has seen.

    k (B, size, Hkv, D) and v (B, size, Hkv, Dv); seq_lens, int32 (B,), has the number of tokens of each sequence.
    """

    def __init__(self, k: torch.Tensor, v: torch.Tensor):
        self.k, self.v, self.size = k, v, k.shape[1]
        self.seq_lens = torch.zeros(k.shape[0], dtype=torch.int32, device=k.device)
        self.longest = 0  # upper bound of the lengths, known without reading from the device

    def append(self, k, v):
        """Appends new tokens to each sequence; `grow` counts them."""
        tokens = k.shape[1]
        if k.shape[0] != len(self.seq_lens):
            raise ValueError(f"cache: expected a batch of {len(self.seq_lens)}, as it was made for, got {k.shape[0]}")
        if self.longest + tokens > self.size:
            raise ValueError(f"cache: expected room for {self.longest + tokens} tokens, got {self.size}")
        places = self.seq_lens[:, None] + torch.arange(tokens, dtype=torch.int64, device=k.device)
        slots = places + self.size * torch.arange(len(places), device=k.device)[:, None]
        append(k, v, self.k, self.v, slots)

    def grow(self, tokens):
        """Counts the new tokens of each sequence that `append` has stored."""
        self.seq_lens += tokens
        self.longest += tokens

    def keep(self, lengths: torch.Tensor, longest: int | None = None) -> None:
        """Forgets all but the first tokens of each sequence: padding at the end of prompts, or drafts.

        lengths: int32 (B,)
        longest: the largest of them, optional; without it no room is freed, as finding it would wait for the device
        """
        shape = self.seq_lens.shape
        arguments.check_tensor(
            "lengths", lengths, self.seq_lens, arguments.INTEGERS, shape, full_axes=(0,), other="the cache"
        )
        kept, looked = torch.minimum(self.seq_lens, lengths), arguments.at_hand(lengths)
        if looked and (lengths < 0).any():
            raise ValueError(f"lengths: expected none below 0, got {lengths.tolist()}")
        if longest is not None:
            longest = arguments.as_int("longest", longest, minimum=0, maximum=self.size)
            most = max(kept.tolist(), default=0) if looked else 0
            if longest < most:
                raise ValueError(f"longest: expected at least the {most} tokens that a sequence keeps, got {longest}")
            self.longest = min(self.longest, longest)
        self.seq_lens.copy_(kept)
