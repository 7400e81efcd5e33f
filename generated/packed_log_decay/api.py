# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_log_decay.yaml
#   content hash  90fe5c60062d0901
#   text hash     c77b5401383fbeec
#   render with   attnforge render specs/packed_log_decay.yaml
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
    log_decay: torch.Tensor,
    scale: float | None = None,
    return_lse: bool = False,
):
    """Causal attention that forgets by a learned decay, for sequences packed into one tensor.

    q (Nq, Hq, D), k (Nk, Hkv, D), v (Nk, Hkv, Dv) hold all sequences, one after the other; out is (Nq, Hq, Dv).
    Rows of no sequence, such as those after the last one, are 0 in out and in gradients.
    Hq is a multiple of Hkv. float16, bfloat16 or float32, head sizes up to 512.

    cu_seqlens, max_seqlen: int32 (S + 1,), where each sequence begins and the last one ends; length of the longest one
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k: the same for queries and keys separately
    log_decay: float (Nk, Hq), learned, read as its cumulative sum; logarithm of each token's decay, at most 0
    scale: factor of q·k, 1 / sqrt(D) if None
    return_lse: whether to return (out, lse), with lse float32 (Hq, Nq)
    """
    return _attention(
        q,
        k,
        v,
        cu_seqlens,
        max_seqlen,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        log_decay,
        scale,
        return_lse,
    )


def _attention(
    q,
    k,
    v,
    cu_seqlens,
    max_seqlen,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    in_log_decay,
    scale,
    return_lse,
):
    """The body of `attention`; from here on, names from the spec begin with `in_`, as in the kernels."""
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
        arguments.check_as_many_keys(cu_seqlens_q, cu_seqlens_k, "log_decay")
    Nq = q.shape[0]
    Nk = k.shape[0]
    Hq = q.shape[-2]
    if Nq > Nk:
        raise ValueError(f"q: expected no more queries than keys, as log_decay is read at both, got {Nq} and {Nk}")
    arguments.check_tensor("log_decay", in_log_decay, q, arguments.FLOATS, (Nk, Hq), (0,))
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
    out, lse = launch.attend(q, k, v, cu_seqlens_q, cu_seqlens_k, in_log_decay, max_seqlen_q, max_seqlen_k, scale)
    out = out if out.dtype == dtype else out.to(dtype)
    return (out, launch.natural(lse, q.shape[0], cu_seqlens_q, max_seqlen_q)) if return_lse else out
