# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gemma2_local.yaml
#   content hash  62468be50e8274d7
#   text hash     ecd533d8dfb3f285
#   render with   attnforge render specs/gemma2_local.yaml
"""Attention of new tokens over a KV cache, dense or paged, with functions to fill the cache and merge results."""

from __future__ import annotations

import collections
import math

import torch

from . import arguments, decode_arguments

CALLS = collections.OrderedDict()  # results of checks, by the shapes and numbers that were checked


def attend_with_cache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    page_table: torch.Tensor | None = None,
    k_starts: torch.Tensor | None = None,
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
    split_size: int | None = None,
    bitwise: str | None = None,
):
    """The local layers of Gemma 2, with a window and capped scores.

    q holds the new tokens of B sequences: (B, Tq, Hq, D), or (T, Hq, D), split by cu_seqlens_q or one per sequence.
    k_cache (P, page, Hkv, D) and v_cache (P, page, Hkv, Dv) hold the pages that page_table lists; without a page_table
    they are (B, S, Hkv, D) and (B, S, Hkv, Dv), with room for S keys of each sequence. The last axis has
    a stride of 1, others may have any.
    The new tokens' own keys are already in the cache, see `append`, and rotated: row i of a sequence has the position
    seq_lens[b] - (its number of new tokens) + i. out has the shape of q, with Dv columns; there are no gradients.
    Hq is a multiple of Hkv. float16, bfloat16 or float32, head sizes up to 512.

    seq_lens: int32 (B,), number of keys of each sequence, including the new ones; 0 gives 0 and an LSE of -inf
    page_table: int32 (B, pages of a sequence); entries of pages without a visible key are not read
    k_starts: int32 (B,), without pages: the place of each sequence's first key, 0 if None; keys before it are not read
    cu_seqlens_q: int32 (B + 1,), where the new tokens of each sequence begin, and where the last ones end
    max_seqlen_q: upper bound of the new tokens of a sequence; not needed without cu_seqlens_q
    max_seqlen_k: upper bound of the keys of a sequence; all that the cache has room for if None
    cos, sin: float (positions, D / 2); cosines and sines of the angles, row p for position p; they rotate q
    positions: int, in the shape of q's tokens, optional; rows of cos and sin for the new tokens
    scale: factor of q·k, 1 / sqrt(D) if None
    k_scale, v_scale: float32, factors of caches of float8_e4m3fn: (), (Hkv,), (B, Hkv) or (P, page, Hkv)
    workspace: float32, contiguous, at least workspace_size(...) values; allocated if None
    out: contiguous, where the result is written, in memory of its own; allocated if None
    return_lse: whether to return (out, lse), with lse float32 (B, Hq, Tq) or (Hq, T)
    split_size: keys per program, a multiple of 128; long caches are read faster with 1024, short ones with fewer. The
        last bits of a row depend on it; if None, it follows from the largest number of new tokens of a sequence
    bitwise: "training" gives each row the bits that `attention` on the whole sequence gives it, on Hopper GPUs if
        ATTNFORGE_TARGET is portable or hopper for both; it takes more time, and memory for a copy of all pages.
        Needs a cache of q's type, and no split_size; workspace is not used
    """
    if max_seqlen_q is not None and type(max_seqlen_q) is not int:
        max_seqlen_q = arguments.as_int("max_seqlen_q", max_seqlen_q)
    if max_seqlen_k is not None and type(max_seqlen_k) is not int:
        max_seqlen_k = arguments.as_int("max_seqlen_k", max_seqlen_k)
    if split_size is not None and type(split_size) is not int:
        split_size = arguments.as_int("split_size", split_size)
    if return_lse is not False:
        arguments.as_bool("return_lse", return_lse)
    attend = attend_now
    if bitwise is not None:
        from . import decode_training

        decode_training.check_numbers(bitwise, split_size)
        attend = decode_training.attend
    elif torch.compiler.is_compiling():
        from . import decode_operators

        attend = decode_operators.attend
    return attend(
        q, k_cache, v_cache, seq_lens, page_table, k_starts, cu_seqlens_q, max_seqlen_q, max_seqlen_k, cos, sin,
        positions, scale, k_scale, v_scale, workspace, out, return_lse, split_size
    )  # fmt: skip


def attend_now(
    q, k_cache, v_cache, seq_lens, page_table, k_starts, cu_seqlens_q, max_seqlen_q, max_seqlen_k, cos, sin,
    positions, scale, k_scale, v_scale, workspace, out, return_lse, split_size
):  # fmt: skip
    """The result of `attend_with_cache` for checked numbers, if nothing is traced."""
    given = (
        q,
        k_cache,
        v_cache,
        seq_lens,
        page_table,
        k_starts,
        cu_seqlens_q,
        cos,
        sin,
        positions,
        k_scale,
        v_scale,
        workspace,
        out,
    )
    call, known = decode_arguments.remembered(CALLS, _check_call, given, (max_seqlen_q, max_seqlen_k, split_size))
    if call is None:
        from . import decode_operators

        return decode_operators.attend(
            q, k_cache, v_cache, seq_lens, page_table, k_starts, cu_seqlens_q, max_seqlen_q, max_seqlen_k, cos, sin,
            positions, scale, k_scale, v_scale, workspace, out, return_lse, split_size
        )  # fmt: skip
    if not known and torch.is_grad_enabled():
        decode_arguments.refuse_gradients(
            q=q, k_cache=k_cache, v_cache=v_cache, k_scale=k_scale, v_scale=v_scale, out=out, cos=cos, sin=sin
        )
    # on a GPU, reading values would wait for it
    if seq_lens.is_cpu:
        decode_arguments.check_values(call, q, seq_lens, cu_seqlens_q)
        if page_table is not None:
            decode_arguments.check_pages(call, k_cache, seq_lens, page_table, cu_seqlens_q, _read, ())
        if k_starts is not None:
            decode_arguments.check_first_keys(k_starts, seq_lens, k_cache)
    scale = call.scale if scale is None else arguments.as_float("scale", scale)
    if workspace is None:
        workspace = q.new_empty(call.size, dtype=torch.float32)
    if out is None:
        # empty_like takes two thirds of the time of new_empty
        out = torch.empty_like(q) if call.out_as_q else q.new_empty(call.out)
    else:
        call.check_out(out, q, k_cache, v_cache, workspace)
    lse = q.new_empty(call.lse, dtype=torch.float32) if return_lse else None
    if not call.in_rows:
        q, positions = q.contiguous(), None if positions is None else positions.contiguous()
    call.attend(
        q,
        call,
        k_cache,
        v_cache,
        out,
        seq_lens,
        page_table,
        k_starts,
        cu_seqlens_q,
        cos,
        sin,
        positions,
        k_scale,
        v_scale,
        scale,
        workspace,
        lse,
    )
    return (out, lse) if return_lse else out


def append_now(k_new, v_new, k_cache, v_cache, slot_mapping, cos, sin, positions, k_scale, v_scale):
    """Implements `append` for checked arguments, if nothing is traced."""
    if k_cache.data_ptr() == v_cache.data_ptr() and k_cache.numel():
        raise ValueError("v_cache: expected memory of its own, got that of k_cache")
    from . import decode_launch as launch

    if launch.runtime.is_watched():
        from . import decode_operators

        return decode_operators.append(
            k_new, v_new, k_cache, v_cache, slot_mapping, cos, sin, positions, k_scale, v_scale
        )
    if launch.runtime.INTERPRETED and k_new.dtype == torch.bfloat16:  # which the interpreter does not round to
        k_new, v_new = k_new.float(), v_new.float()
        wide = decode_arguments.widened(k_cache, v_cache, False)
        append_now(k_new, v_new, *wide, slot_mapping, cos, sin, positions, k_scale, v_scale)
        for cache, found in zip((k_cache, v_cache), wide):
            cache.copy_(found)
        return
    k_new, v_new = (x if x.stride(-1) == 1 else x.contiguous() for x in (k_new, v_new))
    k_new, v_new = (x.reshape(-1, *x.shape[-2:]) for x in (k_new, v_new))
    if k_new.numel():
        launch.append(
            k_new,
            v_new,
            k_cache,
            v_cache,
            slot_mapping.contiguous().view(-1),
            cos,
            sin,
            positions.contiguous().view(-1),
            decode_arguments.by_place(k_scale),
            decode_arguments.by_place(v_scale),
            k_scale is not None and k_scale.dim() == 3,
        )


def workspace_size(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    max_seqlen_q: int,
    max_seqlen_k: int,
    split_size: int | None = None,
) -> int:
    """How many float32 values the workspace needs for calls with tensors of these shapes and with these bounds."""
    from . import decode_launch as launch

    decode_arguments.check_operands(q, k_cache, v_cache, grouped=True, widest=(512, 512))
    split_size = decode_arguments.as_split_size(split_size)
    max_seqlen_q = min(max(arguments.as_int("max_seqlen_q", max_seqlen_q, minimum=0), 1), q.shape[-3])
    max_seqlen_k = arguments.as_int("max_seqlen_k", max_seqlen_k, minimum=0, maximum=2**28)
    # consecutive rows may all belong to one sequence, or each to its own
    longest = (q.shape[1],) if q.dim() == 4 else (1, max_seqlen_q)
    seen = _seen()
    return max(launch.workspace_size(q, k_cache, v_cache, n, max_seqlen_k, split_size, *seen) for n in longest)


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
    """Writes the keys, rotated by the angles of their positions, and values of new tokens to a cache.

    k_new (T, Hkv, D) and v_new (T, Hkv, Dv), or with more axes before the heads; the cache as in `attend_with_cache`.

    slot_mapping: int64, one per token: its page times the page size plus its place in the page; -1 skips the token
    cos, sin: float (positions, D / 2); cosines and sines of the angles, row p for position p
    positions: int, one per token
    k_scale, v_scale: float32, for caches of float8_e4m3fn, whose values are divided by them and rounded; () and (Hkv,)
        are read, (P, page, Hkv) is measured and filled in
    """
    decode_arguments.check_new(k_new, v_new, k_cache, v_cache, slot_mapping, widest=(512, 512))
    arguments.check_angles(cos, sin, k_new, other="k_new")
    decode_arguments.check_each("positions", positions, k_new, arguments.INTEGERS, "k_new")
    decode_arguments.check_scales(k_scale, v_scale, k_cache)
    if torch.is_grad_enabled():
        decode_arguments.refuse_gradients(
            k_new=k_new,
            v_new=v_new,
            k_cache=k_cache,
            v_cache=v_cache,
            cos=cos,
            sin=sin,
            k_scale=k_scale,
            v_scale=v_scale,
        )
    put = append_now
    if torch.compiler.is_compiling() or decode_arguments.needs_dispatcher(
        (k_new, v_new, k_cache, v_cache, slot_mapping, cos, sin, positions, k_scale, v_scale)
    ):
        from . import decode_operators

        put = decode_operators.append
    put(k_new, v_new, k_cache, v_cache, slot_mapping, cos, sin, positions, k_scale, v_scale)


def merge(outs, lses, sinks: torch.Tensor | None = None):
    """(out, lse) over all keys, from the results over parts of them: shared prefixes, cascades, other machines' keys.

    Each part counts positions by itself: rotated queries need `positions` there, and terms must not depend on
    distances.

    outs: tensors (..., T, H, Dv); a part that shows a row nothing does not count there, whatever it holds
    lses: their LSEs (..., H, T), natural logarithm
    sinks: (H,), a logit of each head that joins the denominator once; for parts that were computed without it
    """
    outs, lses = decode_arguments.parts(outs, lses)
    lse = torch.stack(lses).float()
    most = lse.amax(0)
    if sinks is not None:
        arguments.check_tensor("sinks", sinks, outs[0], arguments.FLOATS, (outs[0].shape[-2],), other="the first part")
        most = torch.maximum(most, sinks.float()[:, None])
    # relative to 0 where nothing is seen: -inf - -inf would be NaN
    most = torch.where(most == -math.inf, 0.0, most)
    weights = torch.exp(lse - most)
    total = weights.sum(0)
    if sinks is not None:
        total = total + torch.exp(sinks.float()[:, None] - most)
    # what `where` discards must not be infinite or NaN, as a gradient of 0 times that is NaN
    nothing, total = total == 0, torch.where(total == 0, 1.0, total)
    shares = (weights / total).transpose(-1, -2)[..., None]
    out = sum(torch.where(share == 0, 0.0, x.float()) * share for x, share in zip(outs, shares))
    return out.to(outs[0].dtype), torch.where(nothing, -math.inf, most + torch.log(total))


def _seen():
    """How many keys before its own position a new token may see, and how many of the first keys besides those."""
    return 4095, 0


def _read(position, k_len):
    """Ranges of keys that a new token reads, whatever masks hide within; those that depend on tensors are left out."""
    return ((position - 4095, position + 1),)


def check_shapes(
    q, k_cache, v_cache, seq_lens, page_table, k_starts, cu_seqlens_q, cos, sin, positions, k_scale, v_scale, out,
    max_seqlen_q, max_seqlen_k, split_size
):  # fmt: skip
    """Check everything that shapes and types show; return the most new tokens and the most keys of a sequence."""
    decode_arguments.as_split_size(split_size)
    decode_arguments.check_operands(q, k_cache, v_cache, grouped=True, widest=(512, 512))
    arguments.check_place("q", q)
    longest, max_seqlen_k = decode_arguments.bounds(
        q, k_cache, seq_lens, page_table, k_starts, cu_seqlens_q, max_seqlen_q, max_seqlen_k
    )
    arguments.check_angles(cos, sin, q)
    if positions is not None:
        decode_arguments.check_each("positions", positions, q, arguments.INTEGERS, "q")
    elif cos.shape[0] < max_seqlen_k:
        room = f"the {max_seqlen_k} keys that max_seqlen_k, the cache or page_table has room for, or positions"
        raise ValueError(f"cos: expected a row for each of {room}, got {cos.shape[0]} rows")
    decode_arguments.check_scales(k_scale, v_scale, k_cache, seq_lens.shape[0])
    if out is not None:
        decode_arguments.check_out(out, q, v_cache)
    return longest, max_seqlen_k


def _check_call(
    q, k_cache, v_cache, seq_lens, page_table, k_starts, cu_seqlens_q, cos, sin, positions, k_scale, v_scale,
    workspace, out, max_seqlen_q, max_seqlen_k, split_size
):  # fmt: skip
    """Check the call; return what all such calls have in common."""
    longest, max_seqlen_k = check_shapes(
        q, k_cache, v_cache, seq_lens, page_table, k_starts, cu_seqlens_q, cos, sin, positions, k_scale, v_scale,
        out, max_seqlen_q, max_seqlen_k, split_size
    )  # fmt: skip
    # not earlier: once imported, triton ignores changes of TRITON_INTERPRET
    from . import decode_launch as launch

    seen = _seen()
    size = launch.workspace_size(q, k_cache, v_cache, longest, max_seqlen_k, split_size, *seen)
    if workspace is not None:
        decode_arguments.check_workspace(workspace, q, size)
    return decode_arguments.Call(
        launch, longest, max_seqlen_k, split_size, seen, size, cu_seqlens_q is not None, q, k_cache, v_cache, positions
    )
