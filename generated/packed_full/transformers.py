# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/packed_full.yaml
#   content hash  2ad5858d59c06ffb
#   text hash     3fb7ab189b567e30
#   render with   attnforge render specs/packed_full.yaml
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

SPEC = "packed_full"


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
    rows = _cuts(attention_mask, query, key, kwargs)
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
    """None: cuts come with the batch, as cu_seq_lens_q and cu_seq_lens_k, or each of its rows is a sequence."""
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
    if attention_mask is not None:
        raise ValueError(f"{SPEC}: padding takes a spec of the dense layout; leave attention_mask out if there is none")
    if not isinstance(q_offset, int) or q_offset or kv_offset:
        raise ValueError(f"{SPEC}: a cache takes a spec of the dense layout")
    return None


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
