"""The key `exports`: additional files of a package, and why some specs cannot have them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from ..expressions.inputs import Input
from ..expressions.tree import Node
from ..source import suggestions
from ..source.errors import Problems
from ..source.fields import words
from ..source.located_yaml import Value
from . import parts
from .algorithm import Algorithm
from .layers import LayerTerms
from .rope import Rope

# keywords of `attend_with_cache` and `append` besides those of `attention`
_OF_DECODING = frozenset(
    (
        "k_cache",
        "v_cache",
        "k_new",
        "v_new",
        "seq_lens",
        "page_table",
        "slot_mapping",
        "split_size",
        "bitwise",
        "workspace",
        "out",
        "k_scale",
        "v_scale",
    )
)
# keywords that transformers' layers pass to an attention function themselves
_OF_LAYERS = frozenset(
    (
        "module",
        "query",
        "key",
        "value",
        "attention_mask",
        "dropout",
        "scaling",
        "sliding_window",
        "softcap",
        "s_aux",
        "position_bias",
        "is_causal",
        "cache",
        "cu_seq_lens_q",
        "cu_seq_lens_k",
        "max_length_q",
        "max_length_k",
        "output_attentions",
        "position_ids",
        "angles",
    )
)
# keywords that models, or layers before attention, take and do not pass on
_OF_MODELS = frozenset(
    (
        "hidden_states",
        "input_ids",
        "inputs_embeds",
        "labels",
        "logits_to_keep",
        "past_key_values",
        "position_embeddings",
        "use_cache",
    )
)
# names that the forward method of a module uses itself
_OF_FORWARD = frozenset(("attention", "cache", "context", "self", "tables", "torch", "x"))
# attributes of a generated module, then those that all modules of torch have
_OF_MODULES = frozenset(
    """
    angles extra_repr g_proj head_dim hidden_size k_norm k_proj new_cache num_heads num_kv_heads o_proj q_norm q_proj
    rope_theta v_head_dim v_proj

    add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches eval float forward
    get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict modules mtia named_buffers
    named_children named_modules named_parameters parameters register_backward_hook register_buffer
    register_forward_hook register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook
    register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule
    share_memory state_dict to to_empty train training type xpu zero_grad
    """.split()  # noqa: SIM905
)
# keywords of a module's constructor that it does not keep
_OF_CONSTRUCTORS = frozenset(
    ("bias", "device", "dtype", "hidden_size", "made", "max_positions", "norm_eps", "output_gate", "qk_norm")
)
# keywords that `statistics` adds to `attention`
_OF_STATISTICS = frozenset(("return_max_logit", "return_key_sums"))
# keywords that attention over several ranks adds, and names that it uses itself
_OF_RANKS = frozenset(("api", "arguments", "context_parallel", "group", "parts", "ranks", "terms", "zigzag"))
# words that switch on other code of transformers if they occur in the name of an attention function
LOADED_WORDS = ("flash", "sdpa", "flex", "eager")


@dataclass(frozen=True)
class Candidate:
    """The properties of a spec that decide which exports it can have."""

    name: str
    nodes: Collection[Node]
    keywords: Collection[str]
    inputs: Collection[Input]
    layers: LayerTerms
    packed: bool
    rope: Rope | None
    dropout: bool
    algorithm: Algorithm
    latent: bool


def read(value: Value | None, spec: Candidate, problems: Problems) -> tuple[str, ...]:
    """The exports that a spec asks for; reports those that it cannot have, and why."""
    if value is None:
        return ()
    found = words(value, "export", EXPORTS, problems, empty=True, meant=suggestions.export)
    for word, item in found:
        for why in EXPORTS[word](spec):
            problems.add(item.at, f"{word}: {why}")
    return tuple(word for word, _ in found)


def _no_gradients(spec: Candidate) -> Iterator[str]:
    """Why a spec has no backward pass."""
    if not spec.algorithm.backward:
        yield f"the algorithm {spec.algorithm.name} has the forward pass alone; leave algorithm out"


def _no_decoding(spec: Candidate) -> Iterator[str]:
    """Why a spec cannot be decoded."""
    for name in sorted(_OF_DECODING.intersection(spec.keywords)):
        yield f"{name!r} is already a keyword of decoding; rename the input"
    if not spec.algorithm.backward:
        yield f"the algorithm {spec.algorithm.name} is an earlier order of the whole forward pass; leave algorithm out"
    if spec.dropout:
        yield "dropout is for training; decode with a spec that leaves dropout out"


def _no_layers(spec: Candidate) -> Iterator[str]:
    """Why transformers' layers cannot call a spec."""
    for word in LOADED_WORDS:
        if word in spec.name:
            yield f"{word!r} in a name switches on other code of transformers; rename the spec"
    for name in sorted(_OF_LAYERS.intersection(spec.keywords)):
        yield f"{name!r} is already passed by layers; rename the input"
    for name in sorted(_OF_MODELS.intersection(spec.keywords)):
        yield f"{name!r} is a keyword that models use themselves; rename the input"
    yield from _no_gradients(spec)
    if spec.rope and (spec.rope.dims or spec.rope.layout != "half"):
        yield "models rotate the halves of whole heads: rope: {layout: half}"
    if spec.packed and spec.layers.seen == "prefix":
        yield "prefix_lm needs the dense layout, as layers pass prefixes per batch entry"
    if spec.layers.seen == "all" and spec.layers.reads_q and not spec.layers.table:
        yield "terms that read q need a causal spec, as other layers do not pass the positions of their queries"


def _no_module(spec: Candidate) -> Iterator[str]:
    """Why a spec has no module."""
    yield from _no_gradients(spec)
    if spec.latent:
        yield "keys and values of latent heads share their columns, which projections of a module do not make"
    inputs = {given.name for given in spec.inputs}
    options = set(spec.keywords) - inputs
    held = options | {given.name for given in spec.inputs if learned(given)}
    made = {f"{given.name}_proj" for given in spec.inputs if projected(given)}
    taken = inputs & _OF_FORWARD | (held | made) & (_OF_MODULES | _OF_FORWARD) | options & _OF_CONSTRUCTORS
    taken |= options & {"learn"} if constants(spec.inputs) else set()
    for name in sorted(taken | held & made):
        yield f"{name!r} is already a name of the module; rename the input"


def learned(given: Input) -> bool:
    """Whether an input is a parameter of a module: no token and no batch entry has values of its own."""
    return _made(given) and given.shared


def constants(inputs: Collection[Input]) -> tuple[Input, ...]:
    """The inputs that a module leaves at their default unless it is asked to learn them, as it could learn them."""
    made = {f"{given.name}_proj" for given in inputs if projected(given)}
    taken = _OF_MODULES | _OF_FORWARD | made
    return tuple(x for x in inputs if x.grad and not _made(x) and x.shared and x.name not in taken)


def projected(given: Input) -> bool:
    """Whether a module computes an input from x: each token of each batch entry has values of its own."""
    return _made(given) and len(given.rows) == 1 and "batch" in given.kinds and given.shared_batch is None


def _made(given: Input) -> bool:
    return given.grad and given.default is None and given.value is None


def _no_statistics(spec: Candidate) -> Iterator[str]:
    """Why attention cannot return statistics of a spec's weights."""
    for name in sorted(_OF_STATISTICS.intersection(spec.keywords)):
        yield f"{name!r} is then a keyword of attention; rename the input"
    yield from _no_gradients(spec)


def _no_ranks(spec: Candidate) -> Iterator[str]:
    """Why a spec's tokens cannot be distributed over ranks."""
    for name in sorted(_OF_RANKS.intersection(spec.keywords)):
        yield f"{name!r} is then a name in attention; rename the input"
    yield from _no_gradients(spec)
    if spec.latent:
        yield "keys and values of latent heads share their columns, which are not gathered as one tensor"
    yield from parts.refusals(spec)


EXPORTS: dict[str, Callable[[Candidate], Iterator[str]]] = {
    "decode": _no_decoding,
    "transformers": _no_layers,
    "module": _no_module,
    "statistics": _no_statistics,
    "context_parallel": _no_ranks,
}
