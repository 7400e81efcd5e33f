# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/softcap.yaml
#   content hash  639bc6caaa3c9b0b
#   text hash     80c1fccd9dc94194
#   render with   attnforge render specs/softcap.yaml
"""The package as an attention implementation for models of the library transformers: `register` names it there.

Written for transformers 5.23. A layer whose window, cap, sinks, bias or mask is not the spec's is refused.
"""

from __future__ import annotations

import inspect
import re
import sys

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from . import arguments
from . import runtime
from .api import attention
from .decode import attend_with_cache

SPEC = "softcap"


def register(name: str = f"attnforge_{SPEC}") -> str:
    """Register the package for models; return its name, for `attn_implementation`."""
    if not isinstance(name, str):
        raise TypeError(f"name: expected a string, got {name!r}")
    for word in ("flash", "sdpa", "flex", "eager", "/", "|"):
        if word in name:
            raise ValueError(f"name: {word!r} in it switches on other code of transformers, got {name!r}")
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, mask)
    return name


def attend(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    sliding_window=None,
    softcap=None,
    s_aux=None,
    position_bias=None,
    is_causal=None,
    **kwargs,
):
    """(out, None): the attention of a layer, out (B, Tq, Hq, Dv), and None in place of the weights.

    query (B, Hq, Tq, D), key (B, Hkv, Tk, D) and value (B, Hkv, Tk, Dv), rotated if the model does so
    attention_mask: the result of `mask`, or None
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if sliding_window is None:
        # some models have it only in their mask
        sliding_window = _window(attention_mask)
    if not is_causal:
        raise ValueError(f"{SPEC}: expected a causal layer, as the spec hides later keys; this one is not")
    if sliding_window is not None:
        raise ValueError(
            f"{SPEC}: the layer has a window of {sliding_window} keys, the spec none: it needs the term sliding_window"
        )
    if softcap != 30.0:
        raise ValueError(f"{SPEC}: the spec caps scores at 30.0, the layer at {softcap}: it needs the same")
    if s_aux is not None:
        raise ValueError(f"{SPEC}: the layer has sinks, the spec none: it needs sink: true")
    if position_bias is not None:
        raise ValueError(f"{SPEC}: the layer adds a bias, the spec none: it needs the term bias")
    if dropout:
        raise ValueError(
            f"{SPEC}: the layer drops a share {dropout} of the weights, the spec none: it needs dropout: true"
        )
    if kwargs.get("output_attentions"):
        raise ValueError(f"{SPEC}: weights are never in memory: output_attentions needs eager")
    if kwargs.get("cache") is not None:
        raise ValueError(f"{SPEC}: pages of continuous batching need another attention")
    if kwargs.get("indices") is not None or kwargs.get("block_indices") is not None:
        raise ValueError(f"{SPEC}: the layer picks keys for each query, the spec does not")
    if kwargs.get("sinks") is not None:
        raise ValueError(f"{SPEC}: the layer gives its sinks as `sinks`, this reads s_aux alone")
    if kwargs.get("cu_seq_lens_q") is not None:
        raise ValueError(f"{SPEC}: cu_seq_lens_q packs sequences: this takes a spec with layout: packed")
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    rows = _rows(attention_mask)
    if "k_starts" not in rows and _count_all(kwargs.get("position_ids"), query, key):
        # with a cache, `mask` does not get them
        _by_positions(_check_positions, kwargs["position_ids"])
    given = dict(scale=scaling)
    if _decodes(query, key, is_causal):
        q, k, v = arguments.cast(q, k, v)  # as `attention` does
        return attend_with_cache(q, k, v, **_cached(key, attention_mask, rows), **given), None
    out = attention(q, k, v, **rows, **given)
    return out, None


MOST_NEW = 16  # most new tokens of a call whose keys are split among programs


def _decodes(query, key, is_causal):
    """Whether few new tokens read a cache, over whose keys `attend_with_cache` has more programs than `attention`."""
    if not is_causal or torch.is_grad_enabled():
        return False
    # in this order: a compiler that has one length for both needs no further condition on it
    return query.shape[2] < key.shape[2] and query.shape[2] <= MOST_NEW


def _cached(key, attention_mask, rows):
    """The keywords of `attend_with_cache`, from the result of `mask` and `_rows` of it."""
    given = dict(rows)
    given.pop("k_lens", None)
    if given.pop("q_start", None) is not None:
        given["seq_lens"] = _numbers(attention_mask)[-1]
    else:
        # the last key is the last new token's own
        given["seq_lens"] = key.new_full(key.shape[:1], key.shape[2], dtype=torch.int32)
    return given


def mask(
    batch_size,
    q_length,
    kv_length,
    q_offset=0,
    kv_offset=0,
    mask_function=causal_mask_function,
    attention_mask=None,
    local_size=None,
    use_vmap=False,
    device="cpu",
    **kwargs,
):
    """Where each entry's keys begin and end, the first query's position, and the number of keys up to the last query's.

    int32 (B, 4, 1, 1), in layers with a window (B, 4, 1 + window, 1). If all line up, (B, 0, 1 + window, 1), or None
    without a window.

    The axes are those of a mask, which models pass on unread. attention_mask (B, tokens so far) may be padded on
    either side, without holes.
    """
    config = kwargs.get("config")
    if config is not None and not _asks(type(config)):
        raise ValueError(
            f"{SPEC}: layers of {config.model_type} make attention, or its mask, themselves: no name changes that"
        )
    if kwargs.get("allow_is_causal_skip") is False and mask_function is causal_mask_function and q_length > 1:
        raise ValueError(f"{SPEC}: the model reads a mask of all pairs itself, as where it picks keys for each query")
    if use_vmap:
        raise ValueError(f"{SPEC}: the model joins a mask of its own to the usual one; write it into the spec")
    if local_size is not None and local_size == getattr(config, "attention_chunk_size", None):
        raise ValueError(
            f"{SPEC}: the model has layers that see chunks of {local_size} keys, which are not read from it"
        )
    if mask_function is bidirectional_mask_function:
        raise ValueError(f"{SPEC}: the model asks for a mask that shows later keys, the spec hides them")
    wait = _may_wait(q_length, device)
    if mask_function is not causal_mask_function and q_length > 1:
        before, after = _neighbours(mask_function, batch_size, kv_length, device)
        told = f"{SPEC}: position_ids pack sequences, or blocks see later keys: this takes layout: packed or prefix_lm"
        _check((before | _is_narrow(local_size)).all() & ~after.any(), told, wait)
    lined = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    if lined and _is_full(attention_mask, kv_offset + kv_length, wait):
        if local_size is None:
            return None
        return _with_window(torch.empty(batch_size, 0, 1, 1, dtype=torch.int32, device=device), local_size)
    first, end = _keys(attention_mask, batch_size, kv_length, kv_offset, device, wait)
    start = q_offset - kv_offset - first
    return _with_window(_columns(first, end, start, start + q_length), local_size)


def _rows(attention_mask):
    """The keywords of `attention`, from the result of `mask`."""
    if attention_mask is None:
        return {}
    return dict(zip(("k_starts", "k_lens", "q_start"), _numbers(attention_mask)))


def _neighbours(mask_function, batch_size, kv_length, device):
    """Whether a query sees the key before its own, and whether the one before sees its key: both (B, kv_length - 1)."""
    entry, here = torch.arange(batch_size, device=device)[:, None], torch.arange(1, kv_length, device=device)[None]
    head = torch.zeros((), dtype=torch.int64, device=device)
    before, after = mask_function(entry, head, here, here - 1), mask_function(entry, head, here - 1, here)
    return before.expand(batch_size, kv_length - 1), after.expand(batch_size, kv_length - 1)


def _count_all(positions, query, key):
    """Whether they are those of all queries and keys; compilers and captures of CUDA graphs read none."""
    if not isinstance(positions, torch.Tensor) or torch.compiler.is_compiling():
        return False
    if positions.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return positions.dim() == 2 and query.shape[2] == key.shape[2] == positions.shape[1] > 1


def _by_positions(make, positions, *more):
    """make(positions, *more), once for all layers, unless torch does not count writes to the tensor."""
    return make(positions, *more) if positions.is_inference() else _once(make, positions, *more)


def _check_positions(positions):
    """Raise an error if a position is not after the previous one: another sequence begins there."""
    told = f"{SPEC}: position_ids pack sequences: this takes a spec with layout: packed"
    _check((positions.diff() > 0).all(), told, _may_wait(positions.shape[1], positions.device))


def _may_wait(q_length, device):
    """Whether reading values may wait for the device: once in a pass over more than one token."""
    if q_length == 1 or torch.compiler.is_compiling():
        return False
    return torch.device(device).type != "cuda" or not torch.cuda.is_current_stream_capturing()


def _check(holds, told, wait):
    """Raise an error if something does not hold: here, or on the device if nothing may wait for it."""
    if not wait:
        runtime.assert_on_device(holds, told)
    elif not holds:
        raise ValueError(told)


def _is_full(attention_mask, tokens, wait):
    """Whether it is known that nothing is padded."""
    if attention_mask is None:
        return True
    return wait and attention_mask.shape[1] >= tokens and bool(attention_mask.all())


def _keys(attention_mask, batch_size, kv_length, kv_offset, device, wait):
    """The row of each entry's first key, and the row after its last one: both (B,)."""
    if attention_mask is None:
        first = torch.zeros(batch_size, dtype=torch.int32, device=device)
        return first, first + kv_length
    held = attention_mask[:, kv_offset : kv_offset + kv_length].to(torch.int32)
    first, count = held.argmax(1), held.sum(1)
    row = torch.arange(held.shape[1], device=held.device)
    run = (row >= first[:, None]) & (row < (first + count)[:, None])
    _check(
        (run == held).all(), f"{SPEC}: expected an attention_mask with padding on the left or right, got holes", wait
    )
    return first, first + count


def _columns(*columns):
    """Numbers of each entry (B,), with the four axes of a mask; each number is contiguous over the entries."""
    return torch.stack(torch.broadcast_tensors(*columns)).to(torch.int32).T[:, :, None, None]


def _with_window(columns, local_size):
    """Columns for layers with a window, which the third axis encodes: its size is one more than the window."""
    return columns if local_size is None else columns.expand(-1, -1, local_size + 1, -1)


def _is_narrow(local_size):
    """Whether a window hides even the key before a query's own; models without one may say 0."""
    return local_size is not None and local_size < 2


def _window(attention_mask):
    """The window of the layers that columns were made for, or None."""
    return attention_mask.shape[2] - 1 or None if _are_columns(attention_mask) else None


def _are_columns(attention_mask):
    """Whether it looks like a result of `mask`: a ready mask has a last axis of all keys."""
    numbers = isinstance(attention_mask, torch.Tensor) and attention_mask.dtype == torch.int32
    return numbers and attention_mask.dim() == 4 and attention_mask.shape[3] == 1


def _numbers(attention_mask):
    """The columns of a result of `mask`."""
    if torch.compiler.is_compiling():
        return _unbound(attention_mask)
    return _once(_unbound, attention_mask)


def _unbound(attention_mask):
    if not _are_columns(attention_mask):
        got = getattr(attention_mask, "shape", type(attention_mask).__name__)
        raise ValueError(f"{SPEC}: expected no ready mask, but a 2-D attention_mask of the model, got {got}")
    # each of them contiguous
    return attention_mask[:, :, 0, 0].T.contiguous().unbind()


LAST = {}  # by function: the tensor of its last call, and the result


def _once(make, x, *more):
    """make(x, *more), computed again only for another tensor, or after a write to it."""
    last, version = LAST.get(make), 0 if x.is_inference() else x._version
    if last is None or last[0] is not x or last[1] != (version, *more):
        last = LAST[make] = x, (version, *more), make(x, *more)
    return last[2]


# model types in which some layers compute attention, or a mask of all pairs, themselves; others look it up by name
IN_PART = ("bigbird_pegasus", "doge", "git", "informer")
ASKS = {}  # a class of configurations -> whether all layers of its models look attention up by name


@torch.compiler.assume_constant_result
def _asks(configs):
    """Whether all layers of a class's models look attention up by name, as far as is known.

    Other layers would take the result of `mask` for a mask of all pairs, and None for one that hides nothing.
    """
    if configs not in ASKS:
        ASKS[configs] = _asks_by_source(configs)
    return ASKS[configs]


def _asks_by_source(configs):
    """The same, found out as transformers does if an existing model gets another attention.

    A class without models of its own stands for the models of its base class.
    """
    for base in configs.__mro__:
        if vars(base).get("model_type") in IN_PART:
            return False
        models = sys.modules.get(base.__module__.replace("configuration_", "modeling_"))
        if models is not None and models.__name__ != base.__module__:
            try:
                source = inspect.getsource(models)
            except (OSError, TypeError):
                return True
            themselves = re.search(r"^class \w*Attention\w*\(nn\.Module\)", source, re.M)
            return "ALL_ATTENTION_FUNCTIONS" in source or not themselves
    return True
