# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/causal.yaml
#   content hash  eb1b5fb2cc79b752
#   text hash     64f97ed3d55d1de2
#   render with   attnforge render specs/causal.yaml
"""The function that users call: it checks its arguments and fills in defaults, then launches the kernels."""

from __future__ import annotations

import math
import os

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
LARGEST = torch.finfo(torch.float32).max


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    return_lse: bool = False,
):
    """Causal attention with grouped heads.

    q (B, Tq, Hq, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv); out is (B, Tq, Hq, Dv).
    Hq is a multiple of Hkv. float16, bfloat16 or float32, head sizes up to 256.

    scale: factor of q·k, 1 / sqrt(D) if None
    return_lse: whether to return (out, lse), with lse float32 (B, Hq, Tq)
    """
    if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        q, k, v = _cast(q), _cast(k), _cast(v)
    _check_operands(q, k, v)
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    else:
        scale = _float("scale", scale)
        # kernels take maxima before they scale: the sign goes to q
        q, scale = (-q, -scale) if scale < 0 else (q, scale)
    # not sooner: once imported, triton no longer heeds TRITON_INTERPRET
    from . import launch

    out, lse = launch.attend(q, k, v, scale)
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


def _number(x):
    """A number as messages show it: of no more digits than somebody would read."""
    return f"one of {x.bit_length()} bits" if isinstance(x, int) and x.bit_length() > 64 else x


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
