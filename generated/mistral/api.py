# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/mistral.yaml
#   content hash  9fa8916462f13c2d
#   text hash     eb70e1bc13f5283e
#   render with   attnforge render specs/mistral.yaml
"""The function that users call: it checks its arguments and fills in defaults, then launches the kernels."""

from __future__ import annotations

import math
import operator
import os

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
LARGEST = torch.finfo(torch.float32).max
INTEGERS = (torch.int32, torch.int64)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None = None,
    k_lens: torch.Tensor | None = None,
    k_starts: torch.Tensor | None = None,
    q_start: torch.Tensor | int | None = None,
    scale: float | None = None,
    return_lse: bool = False,
):
    """Causal attention to the 4096 most recent keys with rotary embedding.

    q (B, Tq, Hq, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv); out is (B, Tq, Hq, Dv).
    Hq is a multiple of Hkv. float16, bfloat16 or float32, head sizes up to 256.
    Tensors of int hold numbers between -2**28 and 2**28.

    cos: cosines of the angles, row p for position p
    sin: sines of the angles, row p for position p
    positions: int (B, Tk), optional; rows of cos and sin, for keys and queries
    k_lens, k_starts: int32 (B,), optional; entry b has the keys of rows k_starts[b] to k_lens[b], without the last one
    q_start: int or int32 (B,), optional; the position of the first query, counted from the entry's first key. Queries at no
        key's position are padding then, and give 0. If None, the last query lines up with the last key
    scale: factor of q·k, 1 / sqrt(D) if None
    return_lse: whether to return (out, lse), with lse float32 (B, Hq, Tq)
    """
    if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        q, k, v = _cast(q), _cast(k), _cast(v)
    _check_operands(q, k, v)
    B = q.shape[0]
    Tq = q.shape[1]
    Tk = k.shape[1]
    if q.shape[-1] % 2:
        raise ValueError(f"q: expected an even head size, as its components turn in pairs, got {q.shape[-1]}")
    _check_table("cos", cos, q, q.shape[-1] // 2)
    _check_table("sin", sin, q, q.shape[-1] // 2)
    if sin.shape != cos.shape:
        raise ValueError(f"sin: expected the shape of cos, {tuple(cos.shape)}, got {tuple(sin.shape)}")
    if positions is None and cos.shape[0] < Tk:
        raise ValueError(f"cos: expected a row for each of {Tk} positions, got {cos.shape[0]}")
    if positions is not None:
        if Tq > Tk:
            raise ValueError(f"positions: expected no more queries than keys beside it, got {Tq} and {Tk}")
        _check_tensor("positions", positions, q, INTEGERS, (B, Tk))
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        _refuse_gradients(cos=cos, sin=sin)
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    else:
        scale = _float("scale", scale)
        # kernels take maxima before they scale: the sign goes to q
        q, scale = (-q, -scale) if scale < 0 else (q, scale)
    entries = None
    if not (k_lens is k_starts is q_start is None):
        entries = _entries(q, k, k_lens, k_starts, q_start, tokens=positions is not None)
    # not sooner: once imported, triton no longer heeds TRITON_INTERPRET
    from . import launch

    out, lse = launch.attend(q, k, v, entries, cos, sin, positions, scale)
    return (out, launch.natural(lse)) if return_lse else out


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
        if len(shape) != 4:
            raise ValueError(f"{name}: expected 4 axes (batch, tokens, heads, head size), got shape {tuple(shape)}")
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
    if k_shape[0] != q_shape[0]:
        raise ValueError(f"k: expected a batch of {q_shape[0]} as q has, got {k_shape[0]}")
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


def _check_tensor(name, x, like, dtypes, shape):
    """An axis of size 1 stands for any size."""
    _check_kind(name, x, like, dtypes)
    fits = [x.shape[i] in (n, 1) for i, n in enumerate(shape[: x.dim()])]
    if x.dim() != len(shape) or not all(fits):
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(x.shape)}")


def _check_table(name, x, like, columns):
    _check_kind(name, x, like, FLOATS)
    if x.dim() != 2 or x.shape[0] == 0 or x.shape[1] != columns:
        raise ValueError(f"{name}: expected shape (positions, {columns}), got {tuple(x.shape)}")


def _refuse_gradients(**given):
    for name, x in given.items():
        if x is not None and x.requires_grad:
            mend = f"hand over {name}.detach()"
            raise ValueError(
                f"{name}: expected a tensor that requires no gradient, as it gets none, got one that does; {mend}"
            )


def _entries(q, k, k_lens, k_starts, q_start, tokens):
    """First row and number of each entry's queries, the same of its keys, and the first query's position: (B, 5).

    All of it stays on the device. Rows that a tensor does not have count for none. `tokens`: whether each query must be a token.
    """
    batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    first = _numbers("k_starts", k_starts, q, 0).clamp(0, keys)
    count = (_numbers("k_lens", k_lens, q, keys).clamp(0, keys) - first).clamp(min=0)
    if q_start is None:
        begin = count - queries
    elif isinstance(q_start, torch.Tensor):
        begin = _numbers("q_start", q_start, q, 0).clamp(-(2**28), 2**28)
    else:
        begin = q.new_full((batch,), _int("q_start", q_start, minimum=-(2**28), maximum=2**28), dtype=torch.int32)
    if q_start is None and not tokens:
        skipped, rows = torch.zeros_like(begin), torch.full_like(begin, queries)
    else:
        # what stands at no key's position is padding
        skipped = (-begin).clamp(0, queries)
        rows = ((count - begin).clamp(max=queries) - skipped).clamp(min=0)
    return torch.stack((skipped, rows, first, count, begin + skipped), 1)


def _numbers(name, x, like, otherwise):
    """A whole number for each batch entry."""
    batch = like.shape[0]
    if x is None:
        return like.new_full((batch,), otherwise, dtype=torch.int32)
    _check_kind(name, x, like, (torch.int32,))
    if x.dim() != 1 or x.shape[0] not in (1, batch):
        raise ValueError(f"{name}: expected shape {(batch,)}, got {tuple(x.shape)}")
    return x.expand(batch)


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
