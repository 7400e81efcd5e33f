"""A spec -> the texts of a module that registers its package with transformers' attention interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..language.exports import LOADED_WORDS
from ..language.spec import Spec
from ..plan.arguments import Argument
from ..plan.paged import PAGED

# a window that hides nothing: as far as positions are counted
_NO_WINDOW = "2**28"


@dataclass(frozen=True)
class Check:
    """A refusal: the condition, and the message as an f-string holds it."""

    when: str
    told: str


@dataclass(frozen=True)
class Transformers:
    """The texts that the module's template prints."""

    words: tuple[str, ...]  # that a registered name may not have in it
    template: str  # of the mask function and of what it gives to `attention`
    rows: str  # the call that gives it
    checks: tuple[Check, ...]
    passed: tuple[tuple[str, str], ...]  # keywords of `attention` that layers decide on, and their texts
    keywords: bool  # whether some of them are keywords of the model's forward
    moves: bool  # whether keys may be counted from anywhere
    operand: str  # what makes an operand of `attention` of a layer's tensor
    result: str
    windows: bool  # whether models may ask for masks that hide early keys
    rotates: bool  # whether q and k may be rotated inside of attention
    decodes: bool  # whether few new tokens may look at a cache by `attend_with_cache`
    by_row: bool  # whether that counts some input's keys from a sequence's first one, and `attention` from row 0


def build(spec: Spec, arguments: Sequence[Argument]) -> Transformers:
    """Prints what layers hand over as what `attention` takes; `arguments` are the plan's."""
    passed = tuple(
        (a.name, _passed(spec, a)) for a in arguments if (spec.layers.seen, a.name) != ("prefix", "prefix_len")
    )
    return Transformers(
        (*LOADED_WORDS, "/", "|"),
        f"packed_{spec.layers.seen}" if spec.packed else spec.layers.seen,
        _rows(spec),
        tuple(_checks(spec)),
        passed,
        any(text.startswith("_keyword") for _, text in passed),
        spec.layers.moves,
        ".transpose(1, 2).flatten(0, 1)" if spec.packed else ".transpose(1, 2)",
        "torch.unflatten(out, 0, query.shape[:3:2])" if spec.packed else "out",
        spec.layers.seen != "all",
        spec.rope is not None,
        "decode" in spec.exports,
        any(x.per_key and not PAGED.holds(x) for x in spec.inputs),
    )


def _rows(spec: Spec) -> str:
    """The call that gives the rows and cuts of a layer's call as keywords."""
    if spec.packed:
        # positions cut sequences under causal masks alone
        return f"{'_rows' if spec.layers.seen == 'causal' else '_cuts'}(attention_mask, query, key, kwargs)"
    return f"_rows(attention_mask{', query, key, is_causal' if spec.layers.seen == 'prefix' else ''})"


def _checks(spec: Spec) -> Iterator[Check]:
    said = spec.layers
    if said.seen == "causal":
        yield Check("not is_causal", "expected a causal layer, as the spec hides later keys; this one is not")
    if said.seen == "all":
        yield Check("is_causal", "expected a layer that is not causal, as the spec shows later keys; this one is")
    if said.window is None:
        yield Check("sliding_window is not None", "the layer has a window of {sliding_window} keys, the spec none")
    elif said.seen != "causal":
        yield Check("sliding_window is not None and not is_causal", "the layer's window looks to both sides")
    if isinstance(said.window, int):
        told = f"the spec has a window of {said.window} keys, the layer one of {{sliding_window}}"
        yield Check(f"sliding_window != {said.window}", told)
    if said.cap is None:
        yield Check("softcap is not None", "the layer caps scores at {softcap}, the spec does not: it needs a softcap")
    else:
        yield Check(f"softcap != {said.cap}", f"the spec caps scores at {said.cap}, the layer at {{softcap}}")
    if not spec.sink:
        yield Check("s_aux is not None", "the layer has sinks, the spec none: it needs sink: true")
    if said.bias:
        yield Check("position_bias is None", "the spec adds a bias, the layer has none")
    else:
        yield Check("position_bias is not None", "the layer adds a bias, the spec none: it needs the term bias")
    if not spec.dropout:
        yield Check("dropout", "the layer drops a share {dropout} of the weights, the spec none")
    yield Check('kwargs.get("output_attentions")', "weights are never in memory: output_attentions needs eager")
    yield Check('kwargs.get("cache") is not None', "pages of continuous batching need another attention")
    picked = 'kwargs.get("indices") is not None or kwargs.get("block_indices") is not None'
    yield Check(picked, "the layer picks keys for each query, the spec does not")
    yield Check('kwargs.get("sinks") is not None', "the layer gives its sinks as `sinks`, this reads s_aux alone")
    if not spec.packed:
        cut = 'kwargs.get("cu_seq_lens_q") is not None'
        yield Check(cut, "cu_seq_lens_q packs sequences: this takes a spec with layout: packed")


def _passed(spec: Spec, argument: Argument) -> str:
    """Text of what a layer gives for a keyword of `attention`."""
    name = argument.name
    if spec.rope and name in ("cos", "sin", "positions"):
        return name
    if name == spec.layers.window:
        return f"{_NO_WINDOW} if sliding_window is None else sliding_window"
    if name == "bias" and spec.layers.bias:
        return "position_bias"
    if name == "sinks":
        # one of -inf is as good as none, which layers of a model may have beside others
        return 'query.new_full(query.shape[1:2], float("-inf")) if s_aux is None else s_aux'
    if name == "dropout_p":
        return "dropout"
    if name == "seed":
        # of the CPU's generator: checkpointing draws the same again, and nothing waits for a GPU
        return 'int(torch.randint(2**62, (), device="cpu")) if dropout else None'
    if argument.absent:
        return f'kwargs.get("{name}")'
    return f'kwargs.get("{name}", {argument.value})' if argument.value else f'_keyword("{name}", kwargs)'
