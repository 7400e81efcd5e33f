# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_causal.yaml
#   content hash  45db8dd28b043f4f
#   text hash     c59a1be33a35e68f
#   render with   attnforge render specs/packed_causal.yaml
"""Attention of tokens that are divided among the ranks of a process group, for sequences longer than one GPU holds."""

from __future__ import annotations

import torch

from . import api, arguments, ranks
from .ranks import part, whole

__all__ = ["attention", "part", "whole"]

# inputs of which each rank passes its part: their axes of tokens
INPUTS = {}


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group=None,
    zigzag: bool = True,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    scale: float | None = None,
    return_lse: bool = False,
):
    """Causal attention for sequences packed into one tensor.

    q (N, Hq, D), k (N, Hkv, D), v (N, Hkv, Dv) are this rank's part of the tokens, as `part` cuts them.
    Gradients of these are complete; those of anything else are this rank's share, to be summed like parameters'.

    group: the ranks, a process group or a DeviceMesh of one dimension; all if None
    zigzag: whether each rank has a stretch of tokens from either end, instead of a single stretch
    cu_seqlens, max_seqlen: int32 (S + 1,) over the tokens of all ranks, where each sequence begins and the last ends,
        and the longest one's length
    scale: factor of q·k, 1 / sqrt(D) if None
    return_lse: whether to return (out, lse), with lse float32 (Hq, N)
    """
    parts = ranks.Parts(group, zigzag)
    terms = {}
    q, k, v = arguments.cast(q, k, v)
    arguments.check_operands(q, k, v, axes=("tokens", "heads", "head size"), grouped=True, widest=(512, 512))
    return ranks.attend_packed(
        api.attention,
        parts,
        INPUTS,
        q,
        k,
        v,
        terms,
        behind=True,
        near=None,
        cu_seqlens=cu_seqlens,
        max_seqlen=max_seqlen,
        scale=scale,
        return_lse=return_lse,
    )
