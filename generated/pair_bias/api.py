# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/pair_bias.yaml
#   content hash  0142da09b10a77dd
#   text hash     bedf00783ef57d55
#   render with   attnforge render specs/pair_bias.yaml
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
    bias: torch.Tensor,
    k_lens: torch.Tensor | None = None,
    k_starts: torch.Tensor | None = None,
    q_start: torch.Tensor | int | None = None,
    scale: float | None = None,
    return_lse: bool = False,
):
    """Attention with a learned bias for each pair of positions.

    q (B, Tq, Hq, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv); out is (B, Tq, Hq, Dv).
    Hq and Hkv are equal. float16, bfloat16 or float32, head sizes up to 512.

    bias: float (B, Hq, Tq, Tk), learned, any axis may be 1, leading ones may be missing; added to each score
    k_lens, k_starts: int32 (B,), optional; entry b has the keys of rows k_starts[b] to k_lens[b] - 1. Self-attention
        padded on the right takes k_lens=lengths, q_start=0: k_lens alone lines up the last row of padding with the last
        key. Padded on the left it takes k_starts=pads, with q_start=-pads if padding has to give 0 under any mask
    q_start: int or int (B,), optional; the position of the first query, counted from the entry's first key. Queries
        without a key at their position are then padding and give 0. If None, the last query lines up with the last key
    scale: factor of q·k, 1 / sqrt(D) if None
    return_lse: whether to return (out, lse), with lse float32 (B, Hq, Tq)
    """
    return _attention(q, k, v, k_lens, k_starts, q_start, bias, scale, return_lse)


def _attention(q, k, v, k_lens, k_starts, q_start, in_bias, scale, return_lse):
    """The body of `attention`; from here on, names from the spec begin with `in_`, as in the kernels."""
    q, k, v = arguments.cast(q, k, v)
    arguments.check_operands(q, k, v, axes=("batch", "tokens", "heads", "head size"), grouped=False, widest=(512, 512))
    B = q.shape[0]
    Tq = q.shape[1]
    Tk = k.shape[1]
    Hq = q.shape[-2]
    arguments.check_tensor("bias", in_bias, q, arguments.FLOATS, (B, Hq, Tq, Tk), short=True)
    if in_bias.dim() < 4:
        in_bias = in_bias[(None,) * (4 - in_bias.dim())]
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    else:
        scale = arguments.as_float("scale", scale)
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
    out, lse = launch.attend(q, k, v, entries, in_bias, scale)
    out = out if out.dtype == dtype else out.to(dtype)
    return (out, launch.natural(lse)) if return_lse else out
