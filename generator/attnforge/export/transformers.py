"""A spec -> the texts of a module that registers its package with transformers' attention interface."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..expressions.inputs import Input
from ..language.exports import LOADED_WORDS
from ..language.spec import Spec
from ..plan.arguments import Argument
from ..plan.paged import PAGED

# a window that hides nothing: as large as positions can get
_NO_WINDOW = "2**28"


@dataclass(frozen=True)
class Check:
    """A refusal: the condition, and the message as it is written in an f-string."""

    when: str
    told: str


@dataclass(frozen=True)
class Transformers:
    """The texts that the module's template prints."""

    words: tuple[str, ...]  # words that a registered name must not contain
    template: str  # for the mask function and for the keywords that `attention` gets from its mask
    rows: str  # the call that returns these keywords
    checks: tuple[Check, ...]
    passed: tuple[tuple[str, str], ...]  # keywords of `attention` that depend on the layer, and their texts
    keywords: bool  # whether some of them are keywords of the model's forward
    moves: bool  # whether keys may be counted from any position
    operand: str  # text that turns a layer's tensor into an operand of `attention`
    result: str  # text that turns the output of `attention` into the layer's
    windows: bool  # whether models may request masks that hide early keys
    rotates: bool  # whether q and k may be rotated inside attention
    placed: bool  # whether queries of layers that see all keys are the same tokens as keys, at known positions
    table: str  # the keyword of a bias that layers like T5's may give as a table; "" if there is none
    entries: int  # how many it has
    decodes: bool  # whether a few new tokens may attend to a cache with `attend_with_cache`
    by_row: bool  # whether that counts some input's keys from a sequence's first one, and `attention` from row 0


def build(spec: Spec, arguments: Sequence[Argument]) -> Transformers:
    """Prints the arguments of a layer as those of `attention`; `arguments` are the plan's."""
    table = _table(spec)
    passed = tuple(
        (a.name, _passed(spec, a)) for a in arguments if (spec.layers.seen, a.name) != ("prefix", "prefix_len")
    )
    return Transformers(
        (*LOADED_WORDS, "/", "|"),
        f"packed_{spec.layers.seen}" if spec.packed else spec.layers.seen,
        _rows(spec),
        tuple(_checks(spec, passed)),
        passed,
        any("_keyword" in text for _, text in passed),
        spec.layers.moves,
        ".transpose(1, 2).flatten(0, 1)" if spec.packed else ".transpose(1, 2)",
        "torch.unflatten(out, 0, query.shape[:3:2])" if spec.packed else "out",
        spec.layers.seen != "all",
        spec.rope is not None,
        _placed(spec),
        table.name if table else "",
        table.sizes[0] if table else 0,
        "decode" in spec.exports,
        any(x.per_key and not PAGED.holds(x) for x in spec.inputs),
    )


def _table(spec: Spec) -> Input | None:
    """The bias that layers may give as a table; those whose heads are rotated have none."""
    return None if spec.rope or spec.packed else spec.layers.table


def _placed(spec: Spec) -> bool:
    """True if terms read positions of queries in layers that see all keys, those of an encoder."""
    return spec.layers.seen == "all" and spec.layers.reads_q


def _rows(spec: Spec) -> str:
    """The call that returns the rows and sequence boundaries of a layer's call as keywords."""
    if spec.packed:
        # positions mark sequence boundaries only under causal masks
        return f"{'_rows' if spec.layers.seen == 'causal' else '_cuts'}(attention_mask, query, key, kwargs)"
    return f"_rows(attention_mask{', query, key, is_causal' if spec.layers.seen == 'prefix' else ''})"


def _checks(spec: Spec, passed: Iterable[tuple[str, str]]) -> Iterator[Check]:
    said = spec.layers
    # `sinks` has a check of its own, as layers may pass it
    given = [name for name, text in passed if "kwargs" not in text and name != "sinks"]
    if given:
        named = ", ".join(f"{name} (their sliding_window)" if name == said.window else name for name in given)
        told = f"layers themselves give {named}: leave that out of the model's keywords"
        yield Check(" or ".join(f'"{name}" in kwargs' for name in given), told)
    if said.seen == "causal":
        yield Check("not is_causal", "expected a causal layer, as the spec hides later keys; this one is not")
    if said.seen == "all":
        yield Check("is_causal", "expected a layer that is not causal, as the spec shows later keys; this one is")
    if said.window is None:
        told = "the layer has a window of {sliding_window} keys, the spec none: it needs the term sliding_window"
        yield Check("sliding_window is not None", told)
    elif said.seen != "causal":
        yield Check("sliding_window is not None and not is_causal", "the layer's window looks to both sides")
    if isinstance(said.window, int):
        told = f"the spec has a window of {said.window} keys, the layer one of {{sliding_window}}"
        yield Check(f"sliding_window != {said.window}", f"{told}; size: runtime takes any")
    if said.cap is None:
        yield Check("softcap is not None", "the layer caps scores at {softcap}, the spec does not: it needs a softcap")
    else:
        told = f"the spec caps scores at {said.cap}, the layer at {{softcap}}: it needs the same"
        yield Check(f"softcap != {said.cap}", told)
    if not spec.sink:
        yield Check("s_aux is not None", "the layer has sinks, the spec none: it needs sink: true")
    if said.bias:
        yield Check("position_bias is None", "the spec adds a bias, the layer has none: leave the term bias out")
    elif _table(spec):
        told = (
            "the spec reads a table, the layer has no bias or one of all pairs: `patch(model)` has layers give theirs"
        )
        known = "position_bias is None or" if _placed(spec) else "position_bias is not None and"
        yield Check(f"{known} position_bias.dim() != 2", told)
        if _placed(spec):
            told = "the layer has {query.shape[2]} queries and {key.shape[2]} keys, the spec reads both at one position"
            yield Check("query.shape[2] != key.shape[2]", told)
    else:
        yield Check("position_bias is not None", "the layer adds a bias, the spec none: it needs the term bias")
    if not spec.dropout:
        told = "the layer drops a share {dropout} of the weights, the spec none: it needs dropout: true"
        yield Check("dropout", told)
    yield Check('kwargs.get("output_attentions")', "weights are never in memory: output_attentions needs eager")
    yield Check('kwargs.get("cache") is not None', "pages of continuous batching need another attention")
    picked = 'kwargs.get("indices") is not None or kwargs.get("block_indices") is not None'
    yield Check(picked, "the layer picks keys for each query, the spec does not")
    yield Check('kwargs.get("sinks") is not None', "the layer gives its sinks as `sinks`, this reads s_aux alone")
    if not spec.packed:
        cut = 'kwargs.get("cu_seq_lens_q") is not None'
        yield Check(cut, "cu_seq_lens_q packs sequences: this takes a spec with layout: packed")


def _passed(spec: Spec, argument: Argument) -> str:
    """Text of a layer's value for a keyword of `attention`."""
    name = argument.name
    if spec.rope and name in ("cos", "sin", "positions"):
        return name
    if name == spec.layers.window:
        return f"{_NO_WINDOW} if sliding_window is None else sliding_window"
    if name == "bias" and spec.layers.bias:
        return "position_bias"
    if (table := _table(spec)) and name == table.name:
        return "position_bias" if _placed(spec) else f"{_keyword(argument)} if position_bias is None else position_bias"
    if name == "sinks":
        # a sink of -inf equals none, which some layers of a model may have
        return 'query.new_full(query.shape[1:2], float("-inf")) if s_aux is None else s_aux'
    if name == "dropout_p":
        return "dropout"
    if name == "seed":
        # from the CPU's generator: checkpointing draws the same number again, and nothing waits for a GPU
        return 'int(torch.randint(2**62, (), device="cpu")) if dropout else None'
    return _keyword(argument)


def _keyword(argument: Argument) -> str:
    """Text of a keyword of the model's forward."""
    name = argument.name
    if argument.absent:
        return f'kwargs.get("{name}")'
    return f'kwargs.get("{name}", {argument.value})' if argument.value else f'_keyword("{name}", kwargs)'
