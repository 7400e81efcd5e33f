# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/forgetting_transformer.yaml
#   content hash  27537f24ac77f070
#   text hash     781ab1a3287a8320
#   render with   attnforge render specs/forgetting_transformer.yaml
"""Decoding as operators that PyTorch can trace; calls that nothing traces do not use this module."""

import functools

import torch

from . import runtime, decode, decode_arguments  # runtime first: it explains a missing triton


@runtime.Operator
def _attend(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, seq_lens: torch.Tensor,
    page_table: torch.Tensor | None, k_starts: torch.Tensor | None, cu_seqlens_q: torch.Tensor | None,
    max_seqlen_q: int | None, max_seqlen_k: int, in_log_decay: torch.Tensor, scale: float | None,
    k_scale: torch.Tensor | None, v_scale: torch.Tensor | None, return_lse: bool, split_size: int | None,
) -> list[torch.Tensor]:  # fmt: skip
    with runtime.planned:
        found = decode.attend_now(
            q, k_cache, v_cache, seq_lens, page_table, k_starts, cu_seqlens_q, max_seqlen_q, max_seqlen_k,
            in_log_decay, scale, k_scale, v_scale, None, None, return_lse, split_size
        )  # fmt: skip
    return list(found) if isinstance(found, tuple) else [found]


@_attend.register_fake
def _(
    q, k_cache, v_cache, seq_lens, page_table, k_starts, cu_seqlens_q, max_seqlen_q, max_seqlen_k, in_log_decay,
    scale, k_scale, v_scale, return_lse, split_size
):  # fmt: skip
    out, lse = decode_arguments.shapes(q, v_cache)
    found = [q.new_empty(out)]
    if return_lse:
        found.append(q.new_empty(lse, dtype=torch.float32))
    return found


def attend(
    q, k_cache, v_cache, seq_lens, page_table, k_starts, cu_seqlens_q, max_seqlen_q, max_seqlen_k, in_log_decay,
    scale, k_scale, v_scale, workspace, out, return_lse, split_size
):  # fmt: skip
    """The result of `attend_with_cache` for checked numbers.

    A compiler plans memory itself: parts are allocated whatever `workspace` is, and `out` gets a copy.
    """
    _, max_seqlen_k = decode.check_shapes(
        q, k_cache, v_cache, seq_lens, page_table, k_starts, cu_seqlens_q, in_log_decay, k_scale, v_scale, out,
        max_seqlen_q, max_seqlen_k, split_size
    )  # fmt: skip
    if torch.is_grad_enabled():
        decode_arguments.refuse_gradients(
            q=q, k_cache=k_cache, v_cache=v_cache, k_scale=k_scale, v_scale=v_scale, out=out, log_decay=in_log_decay
        )
    if workspace is not None:
        decode_arguments.check_workspace(workspace, q, 0)
    found = _attend(
        q, k_cache, v_cache, seq_lens, page_table, k_starts, cu_seqlens_q, max_seqlen_q, max_seqlen_k, in_log_decay,
        scale, k_scale, v_scale, return_lse, split_size
    )  # fmt: skip
    if out is not None:
        found = [out.copy_(found[0]), *found[1:]]
    return tuple(found) if len(found) > 1 else found[0]


@functools.partial(runtime.Operator, mutates=("k_cache", "v_cache", "k_scale", "v_scale"))
def _append(
    k_new: torch.Tensor, v_new: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
    slot_mapping: torch.Tensor, k_scale: torch.Tensor | None, v_scale: torch.Tensor | None,
) -> None:  # fmt: skip
    decode.append_now(k_new, v_new, k_cache, v_cache, slot_mapping, k_scale, v_scale)


@_append.register_fake
def _(*given):
    pass


def append(k_new, v_new, k_cache, v_cache, slot_mapping, k_scale, v_scale):
    """Implements `append` for checked arguments."""
    _append(k_new, v_new, k_cache, v_cache, slot_mapping, k_scale, v_scale)
