# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_log_decay.yaml
#   content hash  cf695bb35f38f4b2
#   text hash     636fdcc43a542e61
#   render with   attnforge render specs/packed_log_decay.yaml
"""The function that users call: it checks its arguments and fills in defaults, then launches the kernels."""

from __future__ import annotations

import math
import operator
import os

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
LARGEST = torch.finfo(torch.float32).max


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
    Rows that no sequence has, such as those behind the last, are 0 in out and in gradients.
    Hq is a multiple of Hkv. float16, bfloat16 or float32, head sizes up to 256.

    cu_seqlens, max_seqlen: int32 (S + 1,), where each sequence begins and the last ends, and the longest one's length
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k: the same for queries and keys apart
    log_decay: (Nk, Hq); logarithm of each token's decay, at most 0
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
    """What `attention` does; names from the spec begin with `in_` from here on, as in the kernels."""
    if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        q, k, v = _cast(q), _cast(k), _cast(v)
    _check_operands(q, k, v)
    if cu_seqlens is not None or max_seqlen is not None:
        if any(x is not None for x in (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)):
            raise ValueError(
                "cu_seqlens: expected none of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k beside it"
            )
        if q.shape[0] != k.shape[0]:
            raise ValueError(f"k: expected the {q.shape[0]} tokens of q, as cu_seqlens cuts both, got {k.shape[0]}")
        cu_seqlens_q, max_seqlen_q = _cuts("cu_seqlens", cu_seqlens, "max_seqlen", max_seqlen, q, q.shape[0])
        cu_seqlens_k, max_seqlen_k = cu_seqlens_q, max_seqlen_q
    else:
        cu_seqlens_q, max_seqlen_q = _cuts("cu_seqlens_q", cu_seqlens_q, "max_seqlen_q", max_seqlen_q, q, q.shape[0])
        cu_seqlens_k, max_seqlen_k = _cuts("cu_seqlens_k", cu_seqlens_k, "max_seqlen_k", max_seqlen_k, q, k.shape[0])
        if cu_seqlens_q.shape != cu_seqlens_k.shape:
            raise ValueError(
                f"cu_seqlens_k: expected shape {tuple(cu_seqlens_q.shape)}, got {tuple(cu_seqlens_k.shape)}"
            )
    Nq = q.shape[0]
    Nk = k.shape[0]
    Hq = q.shape[-2]
    if Nq > Nk:
        raise ValueError(f"q: expected no more queries than keys, as log_decay is read at both, got {Nq} and {Nk}")
    _check_tensor("log_decay", in_log_decay, q, FLOATS, (Nk, Hq), (0,))
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    else:
        scale = _float("scale", scale)
    # not sooner: once imported, triton no longer heeds TRITON_INTERPRET
    from . import launch

    out, lse = launch.attend(q, k, v, cu_seqlens_q, cu_seqlens_k, in_log_decay, max_seqlen_q, max_seqlen_k, scale)
    return (out, launch.natural(lse, q.shape[0], cu_seqlens_q, max_seqlen_q)) if return_lse else out


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
        if x.layout is not torch.strided or x.is_nested:
            raise TypeError(f"{name}: expected a strided tensor, got {_layout(x)}")
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


def _layout(x):
    return "a nested one" if x.is_nested else f"one of layout {_plain(x.layout).removeprefix('_')}"


def _check_kind(name, x, like, dtypes):
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
    if x.layout is not torch.strided or x.is_nested:
        raise TypeError(f"{name}: expected a strided tensor, got {_layout(x)}")
    if x.dtype not in dtypes:
        raise TypeError(f"{name}: expected {' or '.join(map(_plain, dtypes))}, got {_plain(x.dtype)}")
    if x.device != like.device:
        raise ValueError(f"{name}: expected device {like.device} as q has, got {x.device}")


def _check_tensor(name, x, like, dtypes, shape, full_axes=()):
    """An axis of size 1 stands for any size, but for those in `full_axes`."""
    _check_kind(name, x, like, dtypes)
    fits = [x.shape[i] == n or (x.shape[i] == 1 and i not in full_axes) for i, n in enumerate(shape[: x.dim()])]
    if x.dim() != len(shape) or not all(fits):
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(x.shape)}")


def _cuts(name, cuts, longest_name, longest, like, rows):
    """Cuts without gaps in memory, and the length of the longest sequence, which is no more than all rows."""
    _check_kind(name, cuts, like, (torch.int32,))
    if cuts.dim() != 1 or cuts.shape[0] == 0:
        raise ValueError(f"{name}: expected shape (sequences + 1,), got {tuple(cuts.shape)}")
    longest = _int(longest_name, longest, minimum=0, maximum=2**28)
    # on a GPU a look at values would wait for it: there kernels stay within the rows whatever the cuts
    if cuts.is_cpu and type(cuts) is torch.Tensor and not torch.compiler.is_compiling():
        _check_places(name, cuts.tolist(), longest_name, longest, rows)
    return cuts.contiguous(), min(longest, rows)


def _check_places(name, places, longest_name, longest, rows):
    if places[0] < 0:
        raise ValueError(f"{name}: expected a first cut of at least 0, got {places[0]}")
    lengths = [end - first for first, end in zip(places, places[1:])]
    if min(lengths, default=0) < 0:
        i = next(i for i, length in enumerate(lengths) if length < 0)
        raise ValueError(f"{name}: expected cuts that never fall, got {places[i]} before {places[i + 1]}")
    if places[-1] > rows:
        raise ValueError(f"{name}: expected a last cut of at most the {rows} rows that there are, got {places[-1]}")
    if max(lengths, default=0) > longest:
        raise ValueError(f"{longest_name}: expected at least the longest sequence's {max(lengths)}, got {longest}")


def _check_number(name, x, minimum, maximum):
    if minimum is not None and x < minimum:
        raise ValueError(f"{name}: expected at least {minimum}, got {_number(x)}")
    if maximum is not None and x > maximum:
        raise ValueError(f"{name}: expected at most {maximum}, got {_number(x)}")


def _number(x):
    """A number as messages show it: of no more digits than somebody would read."""
    return f"one of {x.bit_length()} bits" if isinstance(x, int) and x.bit_length() > 64 else x


def _int(name, x, minimum=None, maximum=None):
    """x as an int, whatever library it comes from."""
    if isinstance(x, bool) or not isinstance(x, (int, torch.SymInt)):
        x = _converted(name, x, "int", operator.index)
    _check_number(name, x, minimum, maximum)
    return x


def _float(name, x):
    """x as a number that a float32 has room for, whatever library it comes from."""
    if isinstance(x, bool) or not isinstance(x, (int, float, torch.SymInt, torch.SymFloat)):
        x = _converted(name, x, "float", float)
    if not -LARGEST <= x <= LARGEST:
        raise ValueError(f"{name}: expected a finite number within the range of float32, got {_number(x)}")
    return x


def _converted(name, x, kind, convert):
    """A number of another library; a tensor's would have to come from its device, and a text is none."""
    if not isinstance(x, (bool, str, bytes, bytearray, torch.Tensor)):
        try:
            return convert(x)
        except TypeError:
            pass
        except OverflowError:
            return math.inf
    raise TypeError(f"{name}: expected {'an' if kind == 'int' else 'a'} {kind}, got {type(x).__name__}")
