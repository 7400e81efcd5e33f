# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/deepseek_mla_absorbed.yaml
#   content hash  a35fe32c2ef73e4b
#   text hash     c47341645b4db6b3
#   render with   attnforge render specs/deepseek_mla_absorbed.yaml
"""The function that users call: it checks its arguments and fills in defaults, then launches the kernels."""

from __future__ import annotations

import math

import torch

from . import arguments


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    k_lens: torch.Tensor | None = None,
    k_starts: torch.Tensor | None = None,
    q_start: torch.Tensor | int | None = None,
    scale: float | None = None,
    return_lse: bool = False,
):
    """Multi-head latent attention with its projections absorbed; keys of 512 latent and 64 rotated columns, values the latent ones.

    q (B, Tq, Hq, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv); out is (B, Tq, Hq, Dv).
    Hq is a multiple of Hkv. float16, bfloat16 or float32, head sizes up to 576 of q and k, 512 of v.

    k_lens, k_starts: int32 (B,), optional; entry b has the keys of rows k_starts[b] to k_lens[b] - 1. Self-attention
        padded on the right takes k_lens=lengths, q_start=0: k_lens alone lines up the last row of padding with the last
        key. Padded on the left it takes k_starts=pads, with q_start=-pads if padding has to give 0 under any mask
    q_start: int or int (B,), optional; the position of the first query, counted from the entry's first key. Queries
        without a key at their position are then padding and give 0. If None, the last query lines up with the last key
    scale: factor of q·k, 1 / sqrt(D) if None
    return_lse: whether to return (out, lse), with lse float32 (B, Hq, Tq)
    """
    q, k, v = arguments.cast(q, k, v)
    arguments.check_operands(q, k, v, axes=("batch", "tokens", "heads", "head size"), grouped=True, widest=(576, 512))
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    else:
        scale = arguments.as_float("scale", scale)
        # kernels take maxima before they scale, so the sign moves to q
        q, scale = (-q, -scale) if scale < 0 else (q, scale)
    if return_lse is not False:
        arguments.as_bool("return_lse", return_lse)
    q_start = arguments.check_places(q, k_lens, k_starts, q_start)
    # not earlier: once imported, triton ignores changes to TRITON_INTERPRET
    from . import launch, padding

    dtype = q.dtype
    if launch.runtime.INTERPRETED and dtype == torch.bfloat16:  # which the interpreter cannot multiply
        q, k, v = q.float(), k.float(), v.float()
    entries = None
    if not (k_lens is k_starts is q_start is None):
        entries = padding.find_entries(q, k, k_lens, k_starts, q_start, False)
    out, lse = launch.attend(q, k, v, entries, scale)
    out = out if out.dtype == dtype else out.to(dtype)
    return (out, launch.natural(lse)) if return_lse else out
