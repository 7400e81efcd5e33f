# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/llama4_chunked.yaml
#   content hash  72cd07f682e874ff
#   text hash     a374e779f9e98ab1
#   render with   attnforge render specs/llama4_chunked.yaml
"""Decoding with the bits of training: the forward pass of `attention` over the sequences in a cache.

Nothing here waits for the GPU: lengths stay there, and sizes follow from the bounds of the call alone.
"""

import torch

from . import runtime, launch, arguments, decode, decode_arguments, padding  # runtime explains a missing triton


def check_numbers(bitwise, split_size):
    """Check the request, and options that cannot be combined with it."""
    if bitwise != "training":
        raise ValueError(f"bitwise: expected None or 'training', got {bitwise!r}")
    if split_size is not None:
        raise ValueError(f"split_size: expected None beside bitwise='training', which has no splits, got {split_size}")


def check_tensors(q, k_cache):
    """Check that training supports the call, once shapes and types are checked."""
    if k_cache.dtype != q.dtype:
        wanted, found = arguments.plain(q.dtype), arguments.plain(k_cache.dtype)
        raise ValueError(
            f"k_cache: expected {wanted} as q has beside bitwise='training', which knows no other, got {found}"
        )


def attend(*given):
    """The result of `attend_now`, if something may be traced."""
    if not torch.compiler.is_compiling():
        return attend_now(*given)
    from . import decode_operators

    return decode_operators.attend(*given, "training")


def attend_now(
    q, k_cache, v_cache, seq_lens, page_table, k_starts, cu_seqlens_q, max_seqlen_q, max_seqlen_k, cos, sin,
    positions, scale, k_scale, v_scale, workspace, out, return_lse, split_size
):  # fmt: skip
    """The result of `attend_with_cache` with the bits of training, for checked numbers, if nothing is traced."""
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
        None,
        out,
    )
    call, known = decode_arguments.remembered(
        decode.CALLS, decode._check_call, given, (max_seqlen_q, max_seqlen_k, split_size)
    )
    if call is None:
        from . import decode_operators

        return decode_operators.attend(
            q, k_cache, v_cache, seq_lens, page_table, k_starts, cu_seqlens_q, max_seqlen_q, max_seqlen_k, cos, sin,
            positions, scale, k_scale, v_scale, workspace, out, return_lse, split_size, "training"
        )  # fmt: skip
    check_tensors(q, k_cache)
    if not known and torch.is_grad_enabled():
        decode_arguments.refuse_gradients(
            q=q, k_cache=k_cache, v_cache=v_cache, k_scale=k_scale, v_scale=v_scale, out=out, cos=cos, sin=sin
        )
    # on a GPU, reading values would wait for it
    if seq_lens.is_cpu:
        decode_arguments.check_values(call, q, seq_lens, cu_seqlens_q)
        if page_table is not None:
            decode_arguments.check_pages(call, k_cache, seq_lens, page_table, cu_seqlens_q, decode._read, ())
        if k_starts is not None:
            decode_arguments.check_first_keys(k_starts, seq_lens, k_cache)
    scale = call.scale if scale is None else arguments.as_float("scale", scale)
    if out is not None:
        call.check_out(out, q, k_cache, v_cache)
    dtype = q.dtype
    if call.widens:
        q, (k_cache, v_cache) = q.float(), decode_arguments.widened(k_cache, v_cache, call.v_in_k)
    found, lse = _of_call(
        call, q, k_cache, v_cache, seq_lens, page_table, k_starts, cu_seqlens_q, cos, sin, positions, scale
    )
    found = found.to(dtype) if out is None else out.copy_(found)
    return (found, lse) if return_lse else found


def _of_call(call, q, k_cache, v_cache, seq_lens, page_table, k_starts, cu_seqlens_q, cos, sin, positions, scale):
    """Out and LSE of a checked call."""
    sequences = seq_lens.shape[0]
    if 0 in (sequences, *call.out):
        return q.new_zeros(call.out), q.new_full(call.lse, float("-inf"), dtype=torch.float32)
    k_len = seq_lens.clamp(0, call.max_seqlen_k)
    if cu_seqlens_q is None:
        q_len = torch.full_like(k_len, call.longest)
        queries = q.unsqueeze(1) if q.dim() == 3 else q
    else:
        first = cu_seqlens_q[:-1].clamp(0, q.shape[0])
        q_len = (cu_seqlens_q[1:].clamp(max=q.shape[0]) - first).clamp(0, call.longest)
        place = (first[:, None] + _count(q, call.longest)).clamp(max=q.shape[0] - 1)
        queries = q[place]
    if positions is not None:
        positions = positions.view(queries.shape[:2]) if cu_seqlens_q is None else positions[place]
    # as in `attention`: kernels take maxima before they scale
    queries, scale = (-queries, -scale) if scale < 0 else (queries, scale)

    def keys_of(x):
        """Rows of a cache by sequence; rows after the last key may belong to others."""
        if x.numel() == 0 or call.max_seqlen_k == 0:
            return x.new_zeros(sequences, 1, *x.shape[2:])
        if page_table is not None:
            pages = page_table[:, : runtime.cdiv(call.max_seqlen_k, x.shape[1])].clamp(0, x.shape[0] - 1)
            return x.index_select(0, pages.flatten()).unflatten(0, pages.shape).flatten(1, 2)
        return x if k_starts is not None else x[:, : call.max_seqlen_k]

    none, begin = torch.zeros_like(k_len), k_len - q_len
    first_key = none if k_starts is None else torch.minimum(k_starts, k_cache.shape[1] - k_len).clamp(min=0)
    k = keys_of(k_cache)
    v = keys_of(v_cache)
    if page_table is not None:
        # pages before all visible keys may belong to others, and 0 times NaN is NaN
        key = _count(q, v.shape[1])
        seen = key >= 8192 * (begin[:, None] // 8192)
        v.masked_fill_(~seen[..., None, None], 0)
    # the same as `find_entries` of padding.py for such lengths
    entries = torch.stack((none, q_len, first_key, k_len, begin), 1)
    found, lse = _attend_turned(queries, k, v, q_len, entries, cos, sin, positions, scale)
    lse = launch.natural(lse)
    if cu_seqlens_q is None:
        return found.view(call.out), lse.squeeze(2).t().contiguous() if q.dim() == 3 else lse
    # each new token's own row; tokens that belong to no sequence see nothing
    token = _count(q, q.shape[0])
    b = (torch.searchsorted(cu_seqlens_q, token, right=True) - 1).clamp(0, sequences - 1)
    row = token - first[b]
    there, row = (row >= 0) & (row < call.longest), row.clamp(0, call.longest - 1)
    found = torch.where(there[:, None, None], found[b, row], 0.0)
    lse = lse.transpose(0, 1)[:, b, row].masked_fill(~there, float("-inf"))
    return found, lse.contiguous()


def _count(like, n):
    """The numbers from 0 to n - 1, on a tensor's device."""
    return torch.arange(n, dtype=torch.int32, device=like.device)


@runtime.on_its_device
def _attend_turned(q, k, v, q_len, entries, cos, sin, positions, scale):
    """Out and LSE of queries, which are rotated here; keys were rotated before they were stored."""
    none, k_len = torch.zeros_like(q_len), entries[:, 3]
    # queries take angles from the first of their own positions on, or from their place in the sequence
    begin = k_len - q_len if positions is None else none
    rows, no_keys, turned = torch.stack((none, q_len, none, none, begin), 1), q[:, :0, :1], runtime.empty_rows(q)
    cache = runtime.LaunchCache.of("turn", q, turned, rows, cos, sin, positions)
    launch._turn(cache, q, no_keys, turned, no_keys, rows, cos, sin, positions)
    q = turned
    out, lse = launch._outputs(q, v, entries)
    cache = runtime.LaunchCache.of("attend_turned", q, k, v, entries, cos, sin, positions)
    padding.clear(cache, entries, [out])
    launch.attend_turned(cache, q, k, v, out, lse, entries, cos, sin, positions, max(scale, 1e-37))
    return out, lse
