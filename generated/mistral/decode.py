# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/mistral.yaml
#   content hash  9fa8916462f13c2d
#   text hash     f1bf86eaef7feea9
#   render with   attnforge render specs/mistral.yaml
"""Attention of new tokens over a cache of keys and values, dense or in pages, and what goes with it."""

from __future__ import annotations

import math
import operator
import os

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
INTEGERS = (torch.int32, torch.int64)
LARGEST = torch.finfo(torch.float32).max
BOUNDS = {}  # what checks found of calls, by the shapes that they looked at


def attend_with_cache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    page_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None = None,
    scale: float | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
):
    """Causal attention to the 4096 most recent keys with rotary embedding.

    q holds the new tokens of B sequences: (B, Tq, Hq, D), or (T, Hq, D), cut by cu_seqlens_q or one for each sequence.
    k_cache (P, page, Hkv, D) and v_cache (P, page, Hkv, Dv) hold pages of keys that page_table names; without one they
    are (B, S, Hkv, D) and (B, S, Hkv, Dv), with room for S keys of each sequence. Any strides but that of the last axis.
    The new tokens' own keys are in the cache already, see `append`, and rotated: row i of a sequence has the position
    seq_lens[b] - (how many new tokens it has) + i. out has the shape of q, with Dv columns; no gradients.
    Hq is a multiple of Hkv. float16, bfloat16 or float32, head sizes up to 256.

    seq_lens: int32 (B,), how many keys each sequence has, the new ones included; 0 gives 0 and an LSE of -inf
    page_table: int32 (B, pages of a sequence); entries of pages without a visible key are not read
    cu_seqlens_q: int32 (B + 1,), where the new tokens of each sequence begin and the last ones end
    max_seqlen_q: at least the most new tokens of a sequence; known without cu_seqlens_q
    max_seqlen_k: at least the most keys of a sequence; all that there is room for if None
    cos, sin: cosines and sines of the angles, row p for position p; they rotate q
    positions: int, the shape of q's tokens, optional; rows of cos and sin for the new tokens
    scale: factor of q·k, 1 / sqrt(D) if None
    k_scale, v_scale: float32, what caches of float8_e4m3fn are multiplied by: (), (Hkv,), (B, Hkv) or (P, page, Hkv)
    workspace: float32, contiguous, at least workspace_size(...) values; made if None
    out: contiguous, where the result goes; made if None
    return_lse: whether to return (out, lse), with lse float32 (B, Hq, Tq) or (Hq, T)
    """
    given = (
        q,
        k_cache,
        v_cache,
        seq_lens,
        page_table,
        cu_seqlens_q,
        cos,
        sin,
        positions,
        k_scale,
        v_scale,
        workspace,
        out,
    )
    shapes = tuple(map(_shape, given))
    longest, max_seqlen_k, size = _bounds(given, shapes, max_seqlen_q, max_seqlen_k)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else _float("scale", scale)
    _refuse_gradients(q=q, k_cache=k_cache, v_cache=v_cache, cos=cos, sin=sin)
    # on a GPU a look at values would wait for it
    if seq_lens.is_cpu and max(seq_lens.tolist(), default=0) > max_seqlen_k:
        raise ValueError(
            f"max_seqlen_k: expected at least the longest sequence's {max(seq_lens.tolist())}, got {max_seqlen_k}"
        )
    # not sooner: once imported, triton no longer heeds TRITON_INTERPRET
    from . import decode_launch as launch

    positions = None if positions is None else positions.reshape(-1)
    if workspace is None:
        workspace = q.new_empty(size, dtype=torch.float32)
    if out is None:
        out = q.new_empty((*q.shape[:-1], v_cache.shape[-1]))
    lse, strides = None, (0, 0)
    if return_lse:
        lse = q.new_empty((*q.shape[:-3], q.shape[-2], q.shape[-3]), dtype=torch.float32)
        strides = 0 if cu_seqlens_q is not None else 1 if q.dim() == 3 else lse.stride(0), lse.stride(-2)
    rows = q.reshape(-1, *q.shape[-2:])
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    launch.attend(
        rows,
        k_cache,
        v_cache,
        seq_lens,
        page_table,
        cu_seqlens_q,
        longest,
        max_seqlen_k,
        cos,
        sin,
        positions,
        _by_place(k_scale),
        _by_place(v_scale),
        scale,
        workspace,
        out,
        lse,
        strides,
        shapes,
    )
    return (out, lse) if return_lse else out


def workspace_size(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *, max_seqlen_q: int, max_seqlen_k: int
) -> int:
    """How many float32 values the workspace of calls with tensors of such shapes and with these bounds has at least."""
    from . import decode_launch as launch

    return launch.workspace_size(q, k_cache, v_cache, max_seqlen_q, max(max_seqlen_k, 1))


def append(
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Puts the keys, rotated by the angles of their positions, and values of new tokens into a cache.

    k_new (T, Hkv, D) and v_new (T, Hkv, Dv), or with more axes before the heads; the cache as in `attend_with_cache`.

    slot_mapping: int64, one for each token: its page times the size of a page plus its place there; -1 skips the token
    cos, sin: cosines and sines of the angles, row p for position p
    positions: int, one for each token
    k_scale, v_scale: float32, of caches of float8_e4m3fn, whose values are rounded over them; () and (Hkv,) are given,
        (P, page, Hkv) measured and filled in
    """
    _check_new(k_new, v_new, k_cache, v_cache, slot_mapping)
    _check_angles(cos, sin, k_new)
    _check_tensor("positions", positions, k_new, INTEGERS, k_new.shape[:-2], whole=range(k_new.dim()))
    _check_scales(k_scale, v_scale, k_cache)
    from . import decode_launch as launch

    k_new, v_new = (x if x.stride(-1) == 1 else x.contiguous() for x in (k_new, v_new))
    k_new, v_new = (x.reshape(-1, *x.shape[-2:]) for x in (k_new, v_new))
    if k_new.numel():
        launch.append(
            k_new,
            v_new,
            k_cache,
            v_cache,
            slot_mapping.reshape(-1),
            cos,
            sin,
            positions.reshape(-1),
            _by_place(k_scale),
            _by_place(v_scale),
            k_scale is not None and k_scale.dim() == 3,
        )


def merge(outs, lses, sinks: torch.Tensor | None = None):
    """(out, lse) of all keys, from the results over parts of them: shared prefixes, cascades, other machines' keys.

    outs: tensors (..., T, H, Dv); a part that shows a row nothing counts for nothing there, whatever it holds
    lses: their LSEs (..., H, T), natural logarithm
    sinks: (H,), a logit of each head that joins the denominator once; for parts that were made without it
    """
    outs, lses = list(outs), list(lses)
    if not outs or len(outs) != len(lses):
        raise ValueError(f"lses: expected one for each of at least one part, got {len(outs)} outs and {len(lses)} lses")
    *lead, tokens, heads, _ = outs[0].shape
    for i, (x, x_lse) in enumerate(zip(outs, lses)):
        if x.shape != outs[0].shape:
            raise ValueError(
                f"outs: expected the shape of the first part, {tuple(outs[0].shape)}, got {tuple(x.shape)} at {i}"
            )
        if x_lse.shape != (*lead, heads, tokens):
            raise ValueError(f"lses: expected shape {(*lead, heads, tokens)}, got {tuple(x_lse.shape)} at {i}")
    lse = torch.stack(lses).float()
    most = lse.amax(0)
    if sinks is not None:
        _check_tensor("sinks", sinks, outs[0], FLOATS, (heads,))
        most = torch.maximum(most, sinks.float()[:, None])
    # measured from 0 where nothing is seen: -inf - -inf would be NaN
    most = torch.where(most == -math.inf, 0.0, most)
    weights = torch.exp(lse - most)
    total = weights.sum(0)
    if sinks is not None:
        total = total + torch.exp(sinks.float()[:, None] - most)
    shares = (weights / torch.where(total == 0, 1.0, total)).transpose(-1, -2)[..., None]
    out = sum(torch.where(share == 0, 0.0, x.float() * share) for x, share in zip(outs, shares))
    return out.to(outs[0].dtype), torch.where(total == 0, -math.inf, most + torch.log(total))


def _by_place(scale):
    """Scales by sequence, page, place and head, with axes of 1 where one stands for all."""
    if scale is None or scale.dim() < 2:
        return scale if scale is None else scale.view(1, 1, 1, -1)
    return scale[None] if scale.dim() == 3 else scale[:, None, None]


def _shape(x):
    """What checks look at in an argument."""
    return (x.shape, x.stride(), x.dtype, x.device) if isinstance(x, torch.Tensor) else x


def _bounds(given, shapes, max_seqlen_q, max_seqlen_k):
    """What the checks find, from the second call with such shapes on without looking."""
    key = shapes, max_seqlen_q, max_seqlen_k
    try:
        found = BOUNDS.get(key)
    except TypeError:
        found = None  # something in the place of a tensor or a number: the checks tell
    if found is None:
        found = _check_call(*given, max_seqlen_q, max_seqlen_k)
        if len(BOUNDS) == 1024:
            # lengths that never come again
            BOUNDS.clear()
        BOUNDS[key] = found
    return found


def _check_call(
    q,
    k_cache,
    v_cache,
    seq_lens,
    page_table,
    cu_seqlens_q,
    cos,
    sin,
    positions,
    k_scale,
    v_scale,
    workspace,
    out,
    max_seqlen_q,
    max_seqlen_k,
):
    """The most new tokens and the most keys of a sequence, and how many values the workspace has, once all is checked."""
    _check_operands(q, k_cache, v_cache)
    longest, max_seqlen_k = _check_sequences(q, k_cache, seq_lens, page_table, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    _check_angles(cos, sin, q)
    if positions is not None:
        _check_tensor("positions", positions, q, INTEGERS, q.shape[:-2], whole=range(q.dim()))
    elif cos.shape[0] < max_seqlen_k:
        raise ValueError(f"cos: expected a row for each of {max_seqlen_k} positions, got {cos.shape[0]}")
    _check_scales(k_scale, v_scale, k_cache, seq_lens.shape[0])
    if out is not None:
        _check_out(out, q, v_cache)
    from . import decode_launch as launch

    size = launch.workspace_size(q, k_cache, v_cache, longest, max_seqlen_k)
    if workspace is not None:
        _check_workspace(workspace, q, size)
    return longest, max_seqlen_k, size


def _check_operands(q, k_cache, v_cache):
    _check_floats(q=q)
    _check_cache(q, k_cache=k_cache, v_cache=v_cache)
    if q.dim() not in (3, 4):
        raise ValueError(f"q: expected (T, Hq, D) or (B, Tq, Hq, D), got shape {tuple(q.shape)}")
    for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):
        if x.dim() != 4:
            raise ValueError(f"{name}: expected 4 axes (pages, places, heads, head size), got shape {tuple(x.shape)}")
        if x.shape[-1] != 1 and x.stride(-1) != 1:
            raise ValueError(f"{name}: expected head sizes that lie side by side, got a stride of {x.stride(-1)}")
    if k_cache.shape[-1] != q.shape[-1]:
        raise ValueError(f"k_cache: expected a head size of {q.shape[-1]} as q has, got {k_cache.shape[-1]}")
    if k_cache.shape[-2] == 0 or q.shape[-2] % k_cache.shape[-2]:
        raise ValueError(f"k_cache: expected a number of heads that divides q's {q.shape[-2]}, got {k_cache.shape[-2]}")
    if v_cache.shape[:-1] != k_cache.shape[:-1]:
        raise ValueError(
            f"v_cache: expected shape {(*k_cache.shape[:-1], 'Dv')} beside k_cache, got {tuple(v_cache.shape)}"
        )


def _check_floats(**given):
    first, *_ = given.items()
    for name, x in given.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
        if x.dtype not in FLOATS:
            raise TypeError(f"{name}: expected float16, bfloat16 or float32, got {_plain(x.dtype)}")
        if x.dtype != first[1].dtype:
            raise TypeError(f"{name}: expected {_plain(first[1].dtype)} as {first[0]} has, got {_plain(x.dtype)}")
        if x.device != first[1].device:
            raise ValueError(f"{name}: expected device {first[1].device} as {first[0]} has, got {x.device}")
        if x.dim() and not 1 <= x.shape[-1] <= 256:
            raise ValueError(f"{name}: expected a head size from 1 to 256, got {x.shape[-1]}")
    name, x = first
    if x.dtype == torch.bfloat16 and os.environ.get("TRITON_INTERPRET") == "1":
        raise TypeError(
            f"{name}: expected float16 or float32, got bfloat16, which Triton's interpreter cannot multiply"
        )
    if x.device.type != "cuda" and (x.device.type != "cpu" or os.environ.get("TRITON_INTERPRET") != "1"):
        hint = "; set TRITON_INTERPRET=1 before Python starts to run on the CPU" if x.device.type == "cpu" else ""
        raise ValueError(f"{name}: expected a CUDA tensor, got one on {x.device}{hint}")


def _check_cache(like, k_cache, v_cache):
    for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):
        _check_kind(name, x, like, (like.dtype, torch.float8_e4m3fn))
        if x.dtype != k_cache.dtype:
            raise TypeError(f"{name}: expected {_plain(k_cache.dtype)} as k_cache has, got {_plain(x.dtype)}")
        if x.dim() and not 1 <= x.shape[-1] <= 256:
            raise ValueError(f"{name}: expected a head size from 1 to 256, got {x.shape[-1]}")
    if k_cache.dtype == torch.float8_e4m3fn and like.is_cuda and torch.cuda.get_device_capability(like.device) < (8, 9):
        raise TypeError("k_cache: this GPU has no float8_e4m3fn; hand over a cache of q's type")


def _check_scales(k_scale, v_scale, k_cache, sequences=None):
    """Scales by head, or of all; by sequence where it is told how many there are; or by place."""
    for name, x in (("k_scale", k_scale), ("v_scale", v_scale)):
        if x is None and k_cache.dtype == torch.float8_e4m3fn:
            raise ValueError(f"{name}: expected one beside a cache of float8_e4m3fn, got None")
    heads = k_cache.shape[2]
    shapes = [(), (heads,), *([(sequences, heads)] if sequences is not None else []), tuple(k_cache.shape[:3])]
    for name, x in (("k_scale", k_scale), ("v_scale", v_scale)):
        if x is None:
            continue
        _check_kind(name, x, k_cache, (torch.float32,))
        if k_cache.dtype != torch.float8_e4m3fn:
            raise ValueError(f"{name}: expected a cache of float8_e4m3fn beside it, got {_plain(k_cache.dtype)}")
        if x.shape not in shapes or x.dim() != k_scale.dim():
            raise ValueError(f"{name}: expected one of the shapes {shapes}, both alike, got {tuple(x.shape)}")


def _check_sequences(q, k_cache, seq_lens, page_table, cu_seqlens_q, max_seqlen_q, max_seqlen_k):
    """The most new tokens and the most keys of a sequence that the call makes room for."""
    _check_kind("seq_lens", seq_lens, q, (torch.int32,))
    if seq_lens.dim() != 1 or not seq_lens.is_contiguous() or seq_lens.shape[0] >= 2**16:
        raise ValueError(f"seq_lens: expected shape (B,), contiguous, below 65536, got shape {tuple(seq_lens.shape)}")
    sequences, room = seq_lens.shape[0], k_cache.shape[1]
    if page_table is None:
        if k_cache.shape[0] < sequences:
            raise ValueError(
                f"k_cache: expected room for {sequences} sequences, or a page_table, got {k_cache.shape[0]}"
            )
    else:
        _check_kind("page_table", page_table, q, (torch.int32,))
        if (
            page_table.dim() != 2
            or page_table.shape[0] != sequences
            or page_table.stride(1) != 1 != page_table.shape[1]
        ):
            wanted = f"expected shape ({sequences}, pages), rows that lie side by side"
            raise ValueError(
                f"page_table: {wanted}, got shape {tuple(page_table.shape)}, strides {page_table.stride()}"
            )
        room *= page_table.shape[1]
    if cu_seqlens_q is None:
        if q.shape[0] != sequences:
            hint = "" if q.dim() == 4 else ", or cu_seqlens_q"
            raise ValueError(f"q: expected {sequences} sequences as seq_lens has{hint}, got shape {tuple(q.shape)}")
        longest = 1 if q.dim() == 3 else q.shape[1]
        if max_seqlen_q is not None and _int("max_seqlen_q", max_seqlen_q) < longest:
            raise ValueError(f"max_seqlen_q: expected at least the {longest} new tokens of q, got {max_seqlen_q}")
    else:
        _check_kind("cu_seqlens_q", cu_seqlens_q, q, (torch.int32,))
        if q.dim() != 3:
            raise ValueError(f"q: expected (T, Hq, D) beside cu_seqlens_q, got shape {tuple(q.shape)}")
        if cu_seqlens_q.shape != (sequences + 1,) or not cu_seqlens_q.is_contiguous():
            raise ValueError(
                f"cu_seqlens_q: expected shape ({sequences + 1},), contiguous, got {tuple(cu_seqlens_q.shape)}"
            )
        longest = min(_int("max_seqlen_q", max_seqlen_q, minimum=1), max(q.shape[0], 1))
    # at least one, so that there is a split
    most = max(room if max_seqlen_k is None else _int("max_seqlen_k", max_seqlen_k, minimum=0, maximum=2**28), 1)
    if most > max(room, 1):
        raise ValueError(f"max_seqlen_k: expected at most the {room} keys that a sequence has room for, got {most}")
    return longest, most


def _check_new(k_new, v_new, k_cache, v_cache, slot_mapping):
    _check_floats(k_new=k_new, v_new=v_new)
    _check_cache(k_new, k_cache=k_cache, v_cache=v_cache)
    for name, x, cache in (("k_new", k_new, k_cache), ("v_new", v_new, v_cache)):
        if cache.dim() != 4 or cache.shape[:3] != k_cache.shape[:3] or (cache.shape[-1] != 1 and cache.stride(-1) != 1):
            raise ValueError(
                f"{name[0]}_cache: expected (pages, places, heads, head size), got shape {tuple(cache.shape)}"
            )
        if x.dim() < 3 or x.shape[-2:] != cache.shape[-2:] or x.shape[:-2] != k_new.shape[:-2]:
            wanted = f"(tokens, {cache.shape[-2]}, {cache.shape[-1]})"
            raise ValueError(f"{name}: expected shape {wanted} as the cache has heads, got {tuple(x.shape)}")
    _check_tensor(
        "slot_mapping", slot_mapping, k_new, (torch.int64,), k_new.shape[:-2], whole=range(slot_mapping.dim())
    )


def _check_workspace(workspace, like, size):
    _check_kind("workspace", workspace, like, (torch.float32,))
    if workspace.numel() < size or not workspace.is_contiguous():
        raise ValueError(f"workspace: expected {size} values side by side, got shape {tuple(workspace.shape)}")


def _check_out(out, like, v_cache):
    _check_kind("out", out, like, (like.dtype,))
    shape = (*like.shape[:-1], v_cache.shape[-1])
    if out.shape != shape or not out.is_contiguous():
        raise ValueError(f"out: expected shape {shape}, contiguous, got {tuple(out.shape)}")


def _check_angles(cos, sin, like):
    columns = like.shape[-1] // 2
    for name, x in (("cos", cos), ("sin", sin)):
        _check_kind(name, x, like, FLOATS)
        if x.dim() != 2 or x.shape[0] == 0 or x.shape[1] != columns or like.shape[-1] % 2:
            raise ValueError(
                f"{name}: expected shape (positions, {columns}) for an even head size, got {tuple(x.shape)}"
            )
    if sin.shape != cos.shape:
        raise ValueError(f"sin: expected the shape of cos, {tuple(cos.shape)}, got {tuple(sin.shape)}")


def _check_kind(name, x, like, dtypes):
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
    if x.dtype not in dtypes:
        raise TypeError(f"{name}: expected {' or '.join(map(_plain, dtypes))}, got {_plain(x.dtype)}")
    if x.device != like.device:
        raise ValueError(f"{name}: expected device {like.device}, got {x.device}")


def _check_tensor(name, x, like, dtypes, shape, whole=(), longer=()):
    """An axis of size 1 stands for any size, but for those in `whole`; those in `longer` may have more."""
    _check_kind(name, x, like, dtypes)
    fits = [
        n == m or (n == 1 and i not in whole) or (n > m and i in longer) for i, (n, m) in enumerate(zip(x.shape, shape))
    ]
    if x.dim() != len(shape) or not all(fits):
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(x.shape)}")


def _refuse_gradients(**given):
    for name, x in given.items():
        if x is not None and x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(f"{name}: decoding has no backward pass; call it under torch.no_grad()")


def _plain(dtype):
    return str(dtype).removeprefix("torch.")


def _int(name, x, minimum=None, maximum=None):
    if isinstance(x, bool) or not isinstance(x, (int, torch.SymInt)):
        try:
            x = operator.index(None if isinstance(x, (bool, torch.Tensor)) else x)
        except TypeError:
            raise TypeError(f"{name}: expected an int, got {type(x).__name__}") from None
    return _within(name, x, minimum, maximum)


def _float(name, x, minimum=None, maximum=None):
    if isinstance(x, (bool, str, torch.Tensor)):
        raise TypeError(f"{name}: expected a float, got {type(x).__name__}")
    if not -LARGEST <= x <= LARGEST:
        raise ValueError(f"{name}: expected a finite number within the range of float32, got {x}")
    return _within(name, x, minimum, maximum)


def _within(name, x, minimum, maximum):
    if minimum is not None and x < minimum:
        raise ValueError(f"{name}: expected at least {minimum}, got {x}")
    if maximum is not None and x > maximum:
        raise ValueError(f"{name}: expected at most {maximum}, got {x}")
    return x
