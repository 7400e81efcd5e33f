# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/tree_decoding.yaml
#   content hash  cbf6a3b71383d505
#   text hash     8e316757fb9eedc0
#   render with   attnforge render specs/tree_decoding.yaml
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
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None = None,
    tree_mask: torch.Tensor,
    k_lens: torch.Tensor | None = None,
    k_starts: torch.Tensor | None = None,
    q_start: torch.Tensor | int | None = None,
    scale: float | None = None,
    return_lse: bool = False,
):
    """A tree of drafted tokens verified at once, each of which sees its ancestors and all older keys.

    q (B, Tq, Hq, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv); out is (B, Tq, Hq, Dv).
    Hq is a multiple of Hkv. float16, bfloat16 or float32, head sizes up to 512.
    Tensors of int hold numbers between -2**28 and 2**28.

    cos: float (positions, D / 2); cosines of the angles, row p for position p
    sin: float (positions, D / 2); sines of the angles, row p for position p
    positions: int (B, Tk), optional; rows of cos and sin, for keys and queries
    tree_mask: bool (B, Tq, Tq); whether the token of a row sees that of a column
    k_lens, k_starts: int32 (B,), optional; entry b has the keys of rows k_starts[b] to k_lens[b] - 1. Self-attention
        padded on the right takes k_lens=lengths, q_start=0: k_lens alone lines up the last row of padding with the last
        key. Padded on the left it takes k_starts=pads, with q_start=-pads if padding has to give 0 under any mask
    q_start: int or int (B,), optional; the position of the first query, counted from the entry's first key. Queries
        without a key at their position are then padding and give 0. If None, the last query lines up with the last key
    scale: factor of q·k, 1 / sqrt(D) if None
    return_lse: whether to return (out, lse), with lse float32 (B, Hq, Tq)
    """
    return _attention(q, k, v, k_lens, k_starts, q_start, cos, sin, positions, tree_mask, scale, return_lse)


def _attention(q, k, v, k_lens, k_starts, q_start, cos, sin, positions, in_tree_mask, scale, return_lse):
    """The body of `attention`; from here on, names from the spec begin with `in_`, as in the kernels."""
    q, k, v = arguments.cast(q, k, v)
    arguments.check_operands(q, k, v, axes=("batch", "tokens", "heads", "head size"), grouped=True, widest=(512, 512))
    B = q.shape[0]
    Tq = q.shape[1]
    Tk = k.shape[1]
    arguments.check_angles(cos, sin, q)
    if positions is None and cos.shape[0] < Tk:
        raise ValueError(f"cos: expected a row for each of {Tk} positions, got {cos.shape[0]}")
    if positions is not None:
        if Tq > Tk:
            raise ValueError(f"positions: expected no more queries than keys beside it, got {Tq} and {Tk}")
        arguments.check_tensor("positions", positions, q, arguments.INTEGERS, (B, Tk))
    arguments.check_tensor(
        "tree_mask",
        in_tree_mask,
        q,
        (torch.bool,),
        (B, Tq, Tq),
        (
            1,
            2,
        ),
    )
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        arguments.refuse_gradients((), cos=cos, sin=sin)
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
        entries = padding.find_entries(q, k, k_lens, k_starts, q_start, positions is not None)
    out, lse = launch.attend(q, k, v, entries, cos, sin, positions, in_tree_mask, scale)
    out = out if out.dtype == dtype else out.to(dtype)
    return (out, launch.natural(lse)) if return_lse else out
