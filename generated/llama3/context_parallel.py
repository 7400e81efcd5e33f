# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama3.yaml
#   content hash  edeb21127f83bc74
#   text hash     8ce6388e41b5c501
#   render with   attnforge render specs/llama3.yaml
"""Attention of tokens that are divided among the ranks of a process group, for sequences longer than one GPU holds."""

from __future__ import annotations

import torch

from . import api, arguments, ranks
from .ranks import part, whole

__all__ = ["attention", "part", "whole"]

# inputs of which each rank passes its part: their axes of tokens
INPUTS = {
    "positions": ranks.Along(key=(-1, 1)),
}


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group=None,
    zigzag: bool = True,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None = None,
    k_lens: torch.Tensor | None = None,
    k_starts: torch.Tensor | None = None,
    q_start: torch.Tensor | int | None = None,
    scale: float | None = None,
    return_lse: bool = False,
):
    """Causal attention with rotary embedding and grouped heads, as in Llama 3.

    q (B, Tq, Hq, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv) are this rank's part of the tokens, as `part` cuts them.
    The same holds for positions: cut by queries if there is an axis of queries, otherwise by keys.
    Gradients of these are complete; those of anything else are this rank's share, to be summed like parameters'.

    group: the ranks, a process group or a DeviceMesh of one dimension; all if None
    zigzag: whether each rank has a stretch of tokens from either end, instead of a single stretch
    cos: float (positions, D / 2); cosines of the angles, row p for position p
    sin: float (positions, D / 2); sines of the angles, row p for position p
    positions: int (B, Tk), optional; rows of cos and sin, for keys and queries
    k_lens, k_starts: int32 (B,), optional; entry b has the keys in rows [k_starts[b], k_lens[b]) of all ranks
    q_start: int or int (B,), optional; the position of the first query of all ranks, needed beside k_lens or k_starts.
        If None, the last query of all lines up with the last key
    scale: factor of q·k, 1 / sqrt(D) if None
    return_lse: whether to return (out, lse), with lse float32 (B, Hq, Tq)
    """
    parts = ranks.Parts(group, zigzag)
    terms = {
        "cos": cos,
        "sin": sin,
        "positions": positions,
    }
    q, k, v = arguments.cast(q, k, v)
    arguments.check_operands(q, k, v, axes=("batch", "tokens", "heads", "head size"), grouped=True, widest=(512, 512))
    return ranks.attend(
        api.attention,
        parts,
        INPUTS,
        q,
        k,
        v,
        terms,
        placed=True,
        behind=True,
        near=None,
        angles=(),
        k_lens=k_lens,
        k_starts=k_starts,
        q_start=q_start,
        scale=scale,
        return_lse=return_lse,
    )
