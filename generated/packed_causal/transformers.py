# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_causal.yaml
#   content hash  193be8469d78a458
#   text hash     75d445651d33849e
#   render with   attnforge render specs/packed_causal.yaml
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

from .api import attention

SPEC = "packed_causal"


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
    if softcap is not None:
        raise ValueError(f"{SPEC}: the layer caps scores at {softcap}, the spec does not: it needs a softcap")
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
    q, k, v = (
        query.transpose(1, 2).flatten(0, 1),
        key.transpose(1, 2).flatten(0, 1),
        value.transpose(1, 2).flatten(0, 1),
    )
    rows = _rows(attention_mask, query, key, kwargs)
    given = dict(scale=scaling)
    out = attention(q, k, v, **rows, **given)
    return torch.unflatten(out, 0, query.shape[:3:2]), None


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
    """Where sequences begin and the last one ends, int32 (S + 1,), the longest one's length, and the layers' window.

    The first two come from position_ids, and are None if each row of the batch is a sequence; if there is no window
    either, the result is None. Cuts that come with the batch, cu_seq_lens_q and cu_seq_lens_k, take precedence.
    Reading them from position_ids waits for the device, once for each mask of a forward pass.
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
    if attention_mask is not None:
        raise ValueError(f"{SPEC}: padding takes a spec of the dense layout; leave attention_mask out if there is none")
    if not isinstance(q_offset, int) or q_offset or kv_offset or kv_length != q_length:
        raise ValueError(f"{SPEC}: a cache takes a spec of the dense layout")
    cuts, longest = None, None
    if mask_function is not causal_mask_function and not torch.compiler.is_compiling():
        before, after = _neighbours(mask_function, batch_size, kv_length, device)
        if after.any():
            raise ValueError(f"{SPEC}: blocks see later keys, which the spec hides")
        if not before.all():
            cuts, longest = _cuts_before(~before)
    return None if cuts is None and local_size is None else (cuts, longest, local_size)


def _cuts_before(begins):
    """Cuts and the longest length, given whether a sequence begins at each place of rows but the first, (B, T - 1)."""
    begins = torch.nn.functional.pad(begins, (1, 0), value=True)
    cuts = torch.nn.functional.pad(begins.flatten().nonzero()[:, 0], (0, 1), value=begins.numel())
    return cuts.to(torch.int32), int(cuts.diff().max())


def _cuts_of(positions, batch_size):
    """The same from position_ids, as transformers reads them: a sequence goes on as long as they count up by 1."""
    return _cuts_before((positions.diff() != 1).expand(batch_size, -1))


def _window(attention_mask):
    """The window of the layers that a mask was made for, or None."""
    return attention_mask[2] if isinstance(attention_mask, tuple) else None


def _rows(attention_mask, query, key, kwargs):
    """The keywords of `attention`, from cuts that come with the batch, from its positions, or from its rows."""
    cuts = None
    if isinstance(attention_mask, tuple):
        cuts, longest, _ = attention_mask
        attention_mask = None
    if attention_mask is not None or kwargs.get("cu_seq_lens_q") is not None:
        return _cuts(attention_mask, query, key, kwargs)
    if cuts is None and _count_all(kwargs.get("position_ids"), query, key):
        # with a cache, `mask` does not get them
        cuts, longest = _by_positions(_cuts_of, kwargs["position_ids"], query.shape[0])
    return _cuts(None, query, key, kwargs) if cuts is None else {"cu_seqlens": cuts, "max_seqlen": longest}


def _cuts(attention_mask, query, key, kwargs):
    """The keywords of `attention`, from cuts that come with the batch, or from its rows."""
    if kwargs.get("cu_seq_lens_q") is not None:
        for name in ("cu_seq_lens_k", "max_length_q", "max_length_k"):
            if kwargs.get(name) is None:
                raise ValueError(f"{SPEC}: expected {name} beside cu_seq_lens_q")
        return {
            "cu_seqlens_q": kwargs["cu_seq_lens_q"].to(torch.int32),
            "cu_seqlens_k": kwargs["cu_seq_lens_k"].to(torch.int32),
            "max_seqlen_q": kwargs["max_length_q"],
            "max_seqlen_k": kwargs["max_length_k"],
        }
    if attention_mask is not None:
        raise ValueError(f"{SPEC}: expected no ready mask, got a {type(attention_mask).__name__}")
    if torch.compiler.is_compiling():
        raise ValueError(f"{SPEC}: compiled models get sequences by cu_seq_lens_q and cu_seq_lens_k")
    rows = {}
    for x, states in (("q", query), ("k", key)):
        batch, _, length, _ = states.shape
        rows[f"cu_seqlens_{x}"] = torch.arange(
            0, batch * length + 1, max(length, 1), dtype=torch.int32, device=query.device
        )
        rows[f"max_seqlen_{x}"] = length
    return rows


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
