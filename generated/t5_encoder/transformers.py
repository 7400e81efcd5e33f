# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/t5_encoder.yaml
#   content hash  2f97f9771d0cb417
#   text hash     407f081b58d6e966
#   render with   attnforge render specs/t5_encoder.yaml
"""The package as an attention implementation for models of the library transformers: `register` names it there.

Written for transformers 5.23. A layer whose window, cap, sinks, bias or mask is not the spec's is refused.
`patch` has layers like T5's give the table of their bias; `register` alone is for models without a bias of their own.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from . import runtime
from .api import attention
from .reference import reference

SPEC = "t5_encoder"


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
    if "rel_bias" in kwargs:
        raise ValueError(f"{SPEC}: layers themselves give rel_bias: leave that out of the model's keywords")
    if is_causal:
        raise ValueError(f"{SPEC}: expected a layer that is not causal, as the spec shows later keys; this one is")
    if sliding_window is not None:
        raise ValueError(
            f"{SPEC}: the layer has a window of {sliding_window} keys, the spec none: it needs the term sliding_window"
        )
    if softcap is not None:
        raise ValueError(f"{SPEC}: the layer caps scores at {softcap}, the spec does not: it needs a softcap")
    if s_aux is not None:
        raise ValueError(f"{SPEC}: the layer has sinks, the spec none: it needs sink: true")
    if position_bias is None or position_bias.dim() != 2:
        raise ValueError(
            f"{SPEC}: the spec reads a table, the layer has no bias or one of all pairs: `patch(model)` has layers give theirs"
        )
    if query.shape[2] != key.shape[2]:
        raise ValueError(
            f"{SPEC}: the layer has {query.shape[2]} queries and {key.shape[2]} keys, the spec reads both at one position"
        )
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
    given = dict(rel_bias=position_bias, scale=scaling)
    out = attention(q, k, v, **rows, **given)
    return out, None


def patch(model) -> str:
    """Have a model's layers give the table of their bias, not a bias of all pairs; return the name it is registered by.

    T5 and its kin compute the bias in their first layer, or in each, and pass it to attention. A table takes no memory
    for pairs, and gets its gradient from the kernels. Encoders and decoders read it differently: patch one of them.
    """
    layers = [layer for layer in model.modules() if getattr(layer, "has_relative_attention_bias", False)]
    if not layers:
        raise ValueError(f"{SPEC}: expected a model with a table of biases, as T5 has, got a {type(model).__name__}")
    for layer in layers:
        _check_entries(layer)
    before = next((layer.attention_before for layer in _patched(model)), model.config._attn_implementation)
    name = register()
    model.set_attn_implementation(name)
    for layer in layers:
        layer.compute_bias = functools.partial(_table, layer)
        # kept in the layer: so copies of a model have it, and so has a model whose inner one was patched
        layer.attention_before = before
    return name


def unpatch(model) -> None:
    """Gives a model back the attention that it had before `patch`."""
    layers = _patched(model)
    if not layers:
        raise ValueError(f"{SPEC}: expected a model that is patched")
    model.set_attn_implementation(layers[0].attention_before)
    for layer in layers:
        del layer.compute_bias, layer.attention_before


def _patched(model):
    """The layers of a model that `patch` has changed."""
    return [layer for layer in model.modules() if "attention_before" in vars(layer)]


def _table(layer, query_length, key_length, device=None, past_seen_tokens=0):
    """A layer's table (heads, entries), in place of its bias of all pairs."""
    return layer.relative_attention_bias.weight.t()


def _check_entries(layer):
    """Raises an error if a layer reads its table at other distances than the spec."""
    count, tokens = layer.relative_attention_num_buckets, 2 * layer.relative_attention_max_distance
    if count != 32:
        raise ValueError(f"{SPEC}: the layer's table has {count} entries, the spec's 32")
    # the layer's own function, with the number of an entry as its value
    known = ("is_decoder", "relative_attention_num_buckets", "relative_attention_max_distance")
    layer_of_entries = types.SimpleNamespace(
        **{name: getattr(layer, name) for name in known},
        _relative_position_bucket=layer._relative_position_bucket,
        relative_attention_bias=lambda entry: entry[..., None],
    )
    theirs = type(layer).compute_bias(layer_of_entries, tokens, tokens, device="cpu")[0, 0]
    # scores of the reference, whose queries and keys are 0, from its weights and LSE: those of visible keys
    nothing, values = torch.zeros(1, tokens, 1, 8, dtype=torch.float64), torch.eye(tokens, dtype=torch.float64)
    table = torch.arange(count, dtype=torch.float64)[None] / count
    weights, lse = reference(nothing, nothing, values[None, :, None], rel_bias=table, scale=1.0, return_lse=True)
    ours = count * (weights[0, :, 0].log() + lse[0, 0, :, None])
    wrong = ours.isfinite() & ((ours - theirs).abs() > 0.5)
    if wrong.any():
        query, key = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{SPEC}: at a distance of {query - key} the layer reads entry {theirs[query, key]}, the spec "
            f"{ours[query, key].round().int()}; encoders and decoders need specs of their own"
        )


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
    """Where each entry's keys begin and end: int32 (B, 2, 1, 1); None if nothing is padded.

    The four axes are those of a mask, which models pass on unread. attention_mask (B, keys) may be padded on either
    side, without holes.
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
    if mask_function is not bidirectional_mask_function:
        raise ValueError(f"{SPEC}: the model asks for a mask that hides keys, the spec shows all")
    wait = _may_wait(q_length, device)
    if _is_full(attention_mask, kv_length, wait):
        return None
    return _columns(*_keys(attention_mask, batch_size, kv_length, kv_offset, device, wait))


def _rows(attention_mask):
    """The keywords of `attention`, from the result of `mask`."""
    if attention_mask is None:
        return {}
    first, end = _numbers(attention_mask)
    return {"k_starts": first, "k_lens": end, "q_start": -first}


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
