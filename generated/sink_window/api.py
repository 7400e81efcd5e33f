# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/sink_window.yaml
#   content hash  9cfde92238c43ddc
#   text hash     50a9e65ca06ee6ab
#   render with   attnforge render specs/sink_window.yaml
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
    window: int,
    sinks: torch.Tensor,
    k_lens: torch.Tensor | None = None,
    k_starts: torch.Tensor | None = None,
    q_start: torch.Tensor | int | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    return_max_logit: bool = False,
    return_key_sums: bool = False,
):
    """Causal attention with a learned sink for each head, to the most recent keys that each call asks for.

    q (B, Tq, Hq, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv); out is (B, Tq, Hq, Dv).
    Hq is a multiple of Hkv. float16, bfloat16 or float32, head sizes up to 512.

    window: int, at least 1
    sinks: float (Hq,), learned; a logit of each head that joins the denominator of the softmax and carries no value
    k_lens, k_starts: int32 (B,), optional; entry b has the keys of rows k_starts[b] to k_lens[b] - 1. Self-attention
        padded on the right takes k_lens=lengths, q_start=0: k_lens alone lines up the last row of padding with the last
        key. Padded on the left it takes k_starts=pads, with q_start=-pads if padding has to give 0 under any mask
    q_start: int or int (B,), optional; the position of the first query, counted from the entry's first key. Queries
        without a key at their position are then padding and give 0. If None, the last query lines up with the last key
    scale: factor of q·k, 1 / sqrt(D) if None
    return_lse: whether to return (out, lse), with lse float32 (B, Hq, Tq)
    return_max_logit: whether to return, after those, float32 (Hq,): for each head, the largest score that its softmax sees
        under the mask, no sink; -inf if nothing is visible. No gradient
    return_key_sums: whether to return, as the last value, float32 (B, Hq, Tk): the softmax weights of each key, summed
        over the queries; sinks count in the denominator. No gradient
    """
    return _attention(
        q, k, v, k_lens, k_starts, q_start, window, sinks, scale, return_lse, return_max_logit, return_key_sums
    )


def _attention(
    q, k, v, k_lens, k_starts, q_start, in_window, sinks, scale, return_lse, return_max_logit, return_key_sums
):
    """The body of `attention`; from here on, names from the spec begin with `in_`, as in the kernels."""
    q, k, v = arguments.cast(q, k, v)
    arguments.check_operands(q, k, v, axes=("batch", "tokens", "heads", "head size"), grouped=True, widest=(512, 512))
    Hq = q.shape[-2]
    in_window = arguments.as_int("window", in_window, minimum=1, maximum=268435456)
    arguments.check_tensor("sinks", sinks, q, arguments.FLOATS, (Hq,))
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    else:
        scale = arguments.as_float("scale", scale)
        # kernels take maxima before they scale, so the sign moves to q
        q, scale = (-q, -scale) if scale < 0 else (q, scale)
    if return_lse is not False:
        arguments.as_bool("return_lse", return_lse)
    if return_max_logit is not False:
        arguments.as_bool("return_max_logit", return_max_logit)
    if return_key_sums is not False:
        arguments.as_bool("return_key_sums", return_key_sums)
    q_start = arguments.check_places(q, k_lens, k_starts, q_start)
    # not earlier: once imported, triton ignores changes to TRITON_INTERPRET
    from . import launch, padding

    dtype = q.dtype
    if launch.runtime.INTERPRETED and dtype == torch.bfloat16:  # which the interpreter cannot multiply
        q, k, v = q.float(), k.float(), v.float()
    entries = None
    if not (k_lens is k_starts is q_start is None):
        entries = padding.find_entries(q, k, k_lens, k_starts, q_start, False)
    if return_max_logit or return_key_sums:
        from . import statistics

        out, lse, *measured = statistics.attend(
            q, k, v, entries, sinks, in_window, scale, return_max_logit, return_key_sums
        )
        return (out if out.dtype == dtype else out.to(dtype), *([launch.natural(lse)] if return_lse else []), *measured)
    out, lse = launch.attend(q, k, v, entries, sinks, in_window, scale)
    out = out if out.dtype == dtype else out.to(dtype)
    return (out, launch.natural(lse)) if return_lse else out
