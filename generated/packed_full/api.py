# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_full.yaml
#   content hash  b84ab6a6c5a5bead
#   text hash     73c1ba65acaaef32
#   render with   attnforge render specs/packed_full.yaml
"""The function that users call: it checks its arguments and fills in defaults, then launches the kernels."""

from __future__ import annotations

import math
import os

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


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
    scale: float | None = None,
    return_lse: bool = False,
):
    """Softmax attention without a mask, for sequences packed into one tensor.

    q (Nq, Hq, D), k (Nk, Hkv, D), v (Nk, Hkv, Dv) hold all sequences, one after the other; out is (Nq, Hq, Dv).
    Rows behind the last sequence are not written, neither of out nor of gradients.
    Hq is a multiple of Hkv. float16, bfloat16 or float32, head sizes up to 256.

    cu_seqlens, max_seqlen: int32 (S + 1,), where each sequence begins and the last ends, and the longest one's length
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k: the same for queries and keys apart
    scale: factor of q·k, 1 / sqrt(D) if None
    return_lse: whether to return (out, lse), with lse float32 (Hq, Nq)
    """
    if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        q, k, v = _cast(q), _cast(k), _cast(v)
    _check_operands(q, k, v)
    if cu_seqlens is not None or max_seqlen is not None:
        if any(x is not None for x in (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)):
            raise ValueError(
                "cu_seqlens: expected none of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k beside it"
            )
        _check_cuts("cu_seqlens", cu_seqlens, "max_seqlen", max_seqlen, q)
        if q.shape[0] != k.shape[0]:
            raise ValueError(f"k: expected the {q.shape[0]} tokens of q, as cu_seqlens cuts both, got {k.shape[0]}")
        cu_seqlens_q = cu_seqlens_k = cu_seqlens.contiguous()
        max_seqlen_q = max_seqlen_k = max_seqlen
    else:
        _check_cuts("cu_seqlens_q", cu_seqlens_q, "max_seqlen_q", max_seqlen_q, q)
        _check_cuts("cu_seqlens_k", cu_seqlens_k, "max_seqlen_k", max_seqlen_k, q)
        if cu_seqlens_q.shape != cu_seqlens_k.shape:
            raise ValueError(
                f"cu_seqlens_k: expected shape {tuple(cu_seqlens_q.shape)}, got {tuple(cu_seqlens_k.shape)}"
            )
        cu_seqlens_q, cu_seqlens_k = cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous()
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    else:
        _check_float("scale", scale)
        # kernels take maxima before they scale: the sign goes to q
        q, scale = (-q, -scale) if scale < 0 else (q, scale)
    # not sooner: once imported, triton no longer heeds TRITON_INTERPRET
    from . import launch

    out, lse = launch.attend(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scale)
    return (out, launch.natural(lse, q.shape[0], cu_seqlens_q)) if return_lse else out


def _cast(x):
    """x in autocast's dtype, where autocast is on."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.dtype == torch.float64:
        return x
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def _check_operands(q, k, v):
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
        if x.dtype not in FLOATS:
            raise TypeError(f"{name}: expected float16, bfloat16 or float32, got {_plain(x.dtype)}")
        shape = x.shape
        if len(shape) != 3:
            raise ValueError(f"{name}: expected 3 axes (tokens, heads, head size), got shape {tuple(shape)}")
        if not 1 <= shape[-1] <= 256:
            raise ValueError(f"{name}: expected a head size from 1 to 256, got {shape[-1]}")
    dtype, device = q.dtype, q.device
    if dtype == torch.bfloat16 and os.environ.get("TRITON_INTERPRET") == "1":
        raise TypeError("q: expected float16 or float32, got bfloat16, which Triton's interpreter cannot multiply")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != dtype:
            raise TypeError(f"{name}: expected {_plain(dtype)} as q has, got {_plain(x.dtype)}")
        if x.device != device:
            raise ValueError(f"{name}: expected device {device} as q has, got {x.device}")
    if device.type != "cuda":
        if device.type != "cpu":
            raise ValueError(f"q: expected a CUDA tensor, got one on {device}")
        if os.environ.get("TRITON_INTERPRET") != "1":
            hint = "set TRITON_INTERPRET=1 before Python starts to run on the CPU"
            raise ValueError(f"q: expected a GPU tensor, got one on the CPU; {hint}")
    # each look at a shape makes it anew
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    if k_shape[-1] != q_shape[-1]:
        raise ValueError(f"k: expected a head size of {q_shape[-1]} as q has, got {k_shape[-1]}")
    if k_shape[-2] == 0 or q_shape[-2] % k_shape[-2]:
        raise ValueError(f"k: expected a number of heads that divides q's {q_shape[-2]}, got {k_shape[-2]}")
    if v_shape[:-1] != k_shape[:-1]:
        raise ValueError(f"v: expected shape {(*k_shape[:-1], 'Dv')} beside k, got {tuple(v_shape)}")


def _plain(dtype):
    return str(dtype).removeprefix("torch.")


def _check_kind(name, x, like, dtypes):
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
    if x.dtype not in dtypes:
        raise TypeError(f"{name}: expected {' or '.join(map(_plain, dtypes))}, got {_plain(x.dtype)}")
    if x.device != like.device:
        raise ValueError(f"{name}: expected device {like.device} as q has, got {x.device}")


def _check_cuts(name, cuts, longest_name, longest, like):
    _check_kind(name, cuts, like, (torch.int32,))
    if cuts.dim() != 1 or cuts.shape[0] == 0:
        raise ValueError(f"{name}: expected shape (sequences + 1,), got {tuple(cuts.shape)}")
    _check_int(longest_name, longest, minimum=0)


def _check_number(name, x, minimum, maximum):
    if minimum is not None and x < minimum:
        raise ValueError(f"{name}: expected at least {minimum}, got {x}")
    if maximum is not None and x > maximum:
        raise ValueError(f"{name}: expected at most {maximum}, got {x}")


def _check_int(name, x, minimum=None, maximum=None):
    if isinstance(x, bool) or not isinstance(x, (int, torch.SymInt)):
        raise TypeError(f"{name}: expected an int, got {type(x).__name__}")
    _check_number(name, x, minimum, maximum)


def _check_float(name, x):
    if isinstance(x, bool) or not isinstance(x, (int, float, torch.SymInt, torch.SymFloat)):
        raise TypeError(f"{name}: expected a float, got {type(x).__name__}")
    if not -math.inf < x < math.inf:
        raise ValueError(f"{name}: expected a finite number, got {x}")
