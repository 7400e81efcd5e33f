# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_rope.yaml
#   content hash  5ff345a977d9dcb8
#   text hash     ba6ec911377702c6
#   render with   attnforge render specs/packed_rope.yaml
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
    cu_seqlens: torch.Tensor | None = None,
    max_seqlen: int | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
):
    """Causal attention with rotary embedding for sequences packed into one tensor.

    q (Nq, Hq, D), k (Nk, Hkv, D), v (Nk, Hkv, Dv) hold all sequences, one after the other; out is (Nq, Hq, Dv).
    Rows of no sequence, such as those after the last one, are 0 in out and in gradients.
    Hq is a multiple of Hkv. float16, bfloat16 or float32, head sizes up to 512.
    Tensors of int hold numbers between -2**28 and 2**28.

    cu_seqlens, max_seqlen: int32 (S + 1,), where each sequence begins and the last one ends; length of the longest one
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k: the same for queries and keys separately
    cos: float (positions, D / 2); cosines of the angles, row p for position p
    sin: float (positions, D / 2); sines of the angles, row p for position p
    positions: int (Nk,), optional; rows of cos and sin, for keys and queries
    scale: factor of q·k, 1 / sqrt(D) if None
    return_lse: whether to return (out, lse), with lse float32 (Hq, Nq)
    """
    q, k, v = arguments.cast(q, k, v)
    arguments.check_operands(q, k, v, axes=("tokens", "heads", "head size"), grouped=True, widest=(512, 512))
    if cu_seqlens is not None or max_seqlen is not None:
        if any(x is not None for x in (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)):
            raise ValueError(
                "cu_seqlens: expected none of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k beside it"
            )
        if q.shape[0] != k.shape[0]:
            raise ValueError(f"k: expected the {q.shape[0]} tokens of q, as cu_seqlens cuts both, got {k.shape[0]}")
        cu_seqlens_q, max_seqlen_q = arguments.cuts("cu_seqlens", cu_seqlens, "max_seqlen", max_seqlen, q, q.shape[0])
        cu_seqlens_k, max_seqlen_k = cu_seqlens_q, max_seqlen_q
    elif cu_seqlens_q is None:
        raise TypeError(
            "cu_seqlens: expected it and max_seqlen, or cu_seqlens_q, cu_seqlens_k, max_seqlen_q and max_seqlen_k, got none"
        )
    else:
        cu_seqlens_q, max_seqlen_q = arguments.cuts(
            "cu_seqlens_q", cu_seqlens_q, "max_seqlen_q", max_seqlen_q, q, q.shape[0]
        )
        cu_seqlens_k, max_seqlen_k = arguments.cuts(
            "cu_seqlens_k", cu_seqlens_k, "max_seqlen_k", max_seqlen_k, q, k.shape[0]
        )
        if cu_seqlens_q.shape != cu_seqlens_k.shape:
            raise ValueError(
                f"cu_seqlens_k: expected shape {tuple(cu_seqlens_q.shape)}, got {tuple(cu_seqlens_k.shape)}"
            )
    Nk = k.shape[0]
    arguments.check_angles(cos, sin, q)
    if positions is None and cos.shape[0] < max_seqlen_k:
        raise ValueError(f"cos: expected a row for each of {max_seqlen_k} positions, got {cos.shape[0]}")
    if positions is not None:
        arguments.check_tensor("positions", positions, q, arguments.INTEGERS, (Nk,), (0,))
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
    # not earlier: once imported, triton ignores changes to TRITON_INTERPRET
    from . import launch

    dtype = q.dtype
    if launch.runtime.INTERPRETED and dtype == torch.bfloat16:  # which the interpreter cannot multiply
        q, k, v = q.float(), k.float(), v.float()
    out, lse = launch.attend(
        q, k, v, cu_seqlens_q, cu_seqlens_k, cos, sin, positions, max_seqlen_q, max_seqlen_k, scale
    )
    out = out if out.dtype == dtype else out.to(dtype)
    return (out, launch.natural(lse, q.shape[0], cu_seqlens_q, max_seqlen_q)) if return_lse else out
