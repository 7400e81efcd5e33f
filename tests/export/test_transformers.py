"""Models of transformers with generated attention give the results of `eager`, or an error that says why not."""

from __future__ import annotations

import copy
import functools
import importlib
import io
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import devices
import pytest
import retracing
import torch
import unformatted

from attnforge.source import resources

transformers = pytest.importorskip("transformers")
masking = importlib.import_module("transformers.masking_utils")

pytestmark = pytest.mark.slow

PACKAGES = "attention_of_models"
PAGE = Path(__file__).parents[2] / "docs" / "transformers.md"
TINY: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": None,
    "initializer_range": 0.4,  # weights that are far from equal
}
WINDOW: dict[str, Any] = {"sliding_window": 5}


@dataclass(frozen=True)
class Family:
    """A class of models, the settings of a tiny one, and the spec of its layers."""

    model: str
    spec: str
    more: dict[str, Any] = field(default_factory=dict)
    tiny: dict[str, Any] = field(default_factory=lambda: TINY)
    config: str = ""

    def made(self, attention: str = "eager") -> Any:
        """A model with random weights, the same for each call."""
        torch.manual_seed(0)
        name = self.config or self.model.replace("ForCausalLM", "Config").replace("Model", "Config")
        config = getattr(transformers, name)(**(self.tiny | self.more))
        return getattr(transformers, self.model)._from_config(config, attn_implementation=attention).float().eval()


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MLA = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12}
DECODERS = {
    "llama": Family("LlamaForCausalLM", "causal"),
    "qwen3": Family("Qwen3ForCausalLM", "causal"),
    "mistral": Family("MistralForCausalLM", "runtime_window", WINDOW),
    "gemma2": Family("Gemma2ForCausalLM", "softcap_window", WINDOW | {"query_pre_attn_scalar": 16}),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        "runtime_window",
        WINDOW | {"query_pre_attn_scalar": 16, "layer_types": ["sliding_attention", "full_attention"]},
        config="Gemma3TextConfig",
    ),
    # asks for masks with a window, although no layer has one
    "qwen2_moe": Family("Qwen2MoeForCausalLM", "causal", {"num_experts": 2, "num_experts_per_tok": 1}),
    # its window appears only in its mask
    "phimoe": Family(
        "PhimoeForCausalLM", "runtime_window", WINDOW | {"num_local_experts": 2, "num_experts_per_tok": 2}
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        "sink_window",
        WINDOW | {"num_local_experts": 2, "num_experts_per_tok": 1, "rope_parameters": ROPE},
    ),
    # sinks only in layers with a window
    "mimo": Family(
        "MiMoV2FlashForCausalLM",
        "sink_window",
        WINDOW
        | {
            "layer_types": ["full_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", "dense"],
            "v_head_dim": 12,
            "n_routed_experts": 2,
            "num_experts_per_tok": 1,
            "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE},
        },
    ),
    "deepseek": Family(
        "DeepseekV3ForCausalLM",
        "deepseek_mla",
        MLA | {"head_dim": 8, "num_key_value_heads": 2, "first_k_dense_replace": 2, "rope_parameters": ROPE},
    ),
}


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ModuleType]]:
    """Makes `transformers.py` for a shipped spec, or for a text."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / PACKAGES).mkdir()

    @functools.cache
    def made(name: str, text: str = "") -> ModuleType:
        path = folder / f"{name}.yaml"
        path.write_text(f"name: {name}\n{text}" if text else resources.variants()[name].read_text())
        unformatted.write(path, folder / PACKAGES / name)
        importlib.invalidate_caches()
        return importlib.import_module(f"{PACKAGES}.{name}.transformers")

    sys.path.insert(0, str(folder))
    yield made
    sys.path.remove(str(folder))
    for loaded in [name for name in sys.modules if name.partition(".")[0] == PACKAGES]:
        del sys.modules[loaded]


@pytest.fixture
def on_device() -> Iterator[None]:
    """Creates models and batches where kernels run."""
    with devices.default():
        yield


def padded(side: str, batch: int = 2, length: int = 11) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and which of them are not padding; the first sequence has some padding on a side."""
    torch.manual_seed(1)
    held = torch.ones(batch, length, dtype=torch.int64)
    held[0, slice(0, 4) if side == "left" else slice(length - 4, length) if side == "right" else slice(0)] = 0
    return torch.randint(2, 40, held.shape) * held, held


def agree(
    model: Any, own: str | Callable[[Any], str], shown: torch.Tensor, call: Callable[[Any], torch.Tensor]
) -> None:
    """Asserts that the results of a call at shown tokens, and all gradients, are those of `eager`.

    `own` is the name of an attention, or the function that gives it to the model.
    """
    found = []
    for implementation in ("eager", own):
        if isinstance(implementation, str):
            model.set_attn_implementation(implementation)
        else:
            implementation(model)
        model.zero_grad()
        values = call(model)[shown.bool()]
        torch.manual_seed(2)
        (values * torch.randn_like(values)).sum().backward()
        found.append((values.detach(), [p.grad for p in model.parameters()]))
    (values, grads), (own, own_grads) = found
    assert (values - own).abs().max() < 2e-5 * values.abs().max()
    largest = max(grad.abs().max() for grad in grads if grad is not None)
    for grad, own_grad in zip(grads, own_grads, strict=True):
        assert (grad is None) == (own_grad is None)
        assert grad is None or (grad - own_grad).abs().max() <= 5e-5 * grad.abs().max() + 1e-6 * largest


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("side", ["left", "right", "nothing"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_is_its_eager_self(name: str, side: str, module: Callable[..., ModuleType]) -> None:
    ids, held = padded(side)
    mask = {} if side == "nothing" else {"attention_mask": held}
    own = module(DECODERS[name].spec).register()
    agree(DECODERS[name].made(), own, held, lambda model: model(ids, use_cache=False, **mask).logits)


@pytest.mark.usefixtures("on_device")
@torch.no_grad()
def test_values_of_keys_count_padding_whether_keys_are_cached_or_not(module: Callable[..., ModuleType]) -> None:
    """Values that all sequences share are indexed by positions in the padded batch."""
    text = "mask: [causal]\nscore: [expr: 'score + warmth']\ninputs: {warmth: {axes: [key]}}\n"
    own = module("warm_keys", f"{text}exports: [decode, transformers]")
    model, (ids, held) = DECODERS["llama"].made(), padded("left")
    model.set_attn_implementation(own.register())
    warmth, places = 3 * torch.randn(ids.shape[1]), (held.cumsum(1) - 1).clamp(0)

    def logits(first: int, end: int, cache: Any = None) -> Any:
        some = slice(first, end)
        mask = {"attention_mask": held[:, :end], "position_ids": places[:, some], "warmth": warmth[:end]}
        return model(ids[:, some], past_key_values=cache, use_cache=True, **mask)

    whole, prompt = logits(0, 11).logits, logits(0, 10)
    torch.testing.assert_close(logits(10, 11, prompt.past_key_values).logits[:, 0], whole[:, -1], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("on_device")
@torch.no_grad()
def test_models_may_leave_out_what_has_a_value_then(module: Callable[..., ModuleType]) -> None:
    own = module(
        "shifted",
        "mask: [causal, expr: 'open']\nscore: [expr: 'score * calm + shift[q]']\nexports: [decode, transformers]\n"
        "inputs:\n  open: {axes: [head, key], dtype: bool, default: true}\n  calm: {axes: [batch, key], default: 1}\n"
        "  shift: {axes: [batch, token], default: 0.5}\n",
    )
    model, (ids, held), found = DECODERS["llama"].made(), padded("left"), []
    for implementation in ("eager", own.register()):
        model.set_attn_implementation(implementation)
        prompt = model(ids[:, :10], attention_mask=held[:, :10], use_cache=True)
        step = model(ids[:, 10:], attention_mask=held, past_key_values=prompt.past_key_values)
        found.append(torch.cat((prompt.logits[held[:, :10].bool()], step.logits[:, 0])))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("on_device")
@torch.no_grad()
def test_autocast_has_its_dtype_in_each_step(
    module: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, dtypes = module(DECODERS["llama"].spec), []
    for name in ("attention", "attend_with_cache"):
        call = getattr(own, name)
        monkeypatch.setattr(own, name, functools.partial(noted, call, dtypes))
    model, ids = DECODERS["llama"].made(), torch.tensor([[5, 3, 7, 2]])
    model.set_attn_implementation(own.register())
    with torch.autocast(ids.device.type, torch.float16):
        model.generate(ids, max_new_tokens=2, min_new_tokens=2, do_sample=False)
    assert dtypes and set(dtypes) == {torch.float16}


def noted(call: Callable[..., Any], dtypes: list[torch.dtype], *given: Any, **more: Any) -> Any:
    """The result of a call; records its dtype."""
    out = call(*given, **more)
    dtypes.append(out.dtype)
    return out


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(
    ("name", "length"), [("llama", 8), ("mistral", 5), ("gemma2", 8), ("gpt_oss", 5), ("phimoe", 8), ("mimo", 5)]
)
def test_generation_is_equal_token_by_token(
    name: str, length: int, cache: str, module: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    # the window has 5 keys: a longer prompt does not fit into a sliding-window cache, a shorter one fills it over time
    model, (ids, held) = DECODERS[name].made(), padded("left", length=length)
    own, found, new = module(DECODERS[name].spec), [], []
    decoded = own.attend_with_cache
    monkeypatch.setattr(
        own, "attend_with_cache", lambda q, *x, **given: new.append(q.shape[1]) or decoded(q, *x, **given)
    )
    for implementation in ("eager", own.register()):
        model.set_attn_implementation(implementation)
        made = model.generate(
            ids,
            attention_mask=held,
            max_new_tokens=5,
            do_sample=False,
            cache_implementation=cache,
            disable_compile=True,
            output_logits=True,
            return_dict_in_generate=True,
        )
        found.append((made.sequences, torch.stack(made.logits)))
    (tokens, logits), (own_tokens, own_logits) = found
    assert torch.equal(tokens, own_tokens)
    assert (logits - own_logits).abs().max() < 2e-5 * logits.abs().max()
    # one call per token in each of two layers; for the prompt, too, if the cache has room for more than its keys
    assert new[-8:] == [1] * 8
    assert len(new) == 8 or cache == "static"


@pytest.mark.skipif(devices.GPU, reason="of Triton's interpreter")
def test_bfloat16_is_generated_in_the_interpreter(
    module: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (ids, _), own, new = DECODERS["llama"].made().bfloat16(), padded("nothing"), module("causal"), []
    decoded = own.attend_with_cache
    monkeypatch.setattr(own, "attend_with_cache", lambda q, *x, **given: new.append(q.dtype) or decoded(q, *x, **given))
    model.set_attn_implementation(own.register())
    with torch.no_grad():
        whole = model(ids).logits[:, -1]
        begun = model(ids[:, :-1], use_cache=True).past_key_values
        step = model(ids[:, -1:], past_key_values=begun).logits[:, -1]
    assert (step - whole).abs().max() < 2e-2 * whole.abs().max()
    assert new == [torch.bfloat16] * model.config.num_hidden_layers


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("patched", [False, True])
def test_compiled_generation_is_equal_token_by_token(patched: bool, module: Callable[..., ModuleType]) -> None:
    model, (ids, held), graphs = DECODERS["llama"].made(), padded("left", length=17), []
    own = module("llama3" if patched else "causal")
    config = transformers.CompileConfig(
        backend=lambda graph, given: graphs.append(graph) or graph, fullgraph=True, mode=None
    )
    config._compile_all_devices = True
    torch.compiler.reset()
    more = {"attention_mask": held, "max_new_tokens": 4, "do_sample": False, "cache_implementation": "static"}
    expected = model.generate(ids, disable_compile=True, **more)
    own.patch(model) if patched else model.set_attn_implementation(own.register())
    assert torch.equal(model.generate(ids, compile_config=config, **more), expected)
    decoding = importlib.import_module(f"{own.__package__}.decode_operators")._attend.traced
    called = [[node.target for node in graph.graph.nodes if "attnforge" in str(node.target)] for graph in graphs]
    assert called == [[decoding] * 2]


@pytest.mark.usefixtures("on_device")
def test_a_prompt_may_come_in_chunks(module: Callable[..., ModuleType]) -> None:
    model, (ids, held) = DECODERS["gemma2"].made(), padded("left", length=14)
    expected = model(ids, attention_mask=held, use_cache=False).logits
    model.set_attn_implementation(module("softcap_window").register())
    cache = transformers.DynamicCache(config=model.config)
    chunks = []
    for first, past in ((0, 6), (6, 12), (12, 14)):
        found = model(ids[:, first:past], attention_mask=held[:, :past], past_key_values=cache)
        chunks.append(found.logits)
    assert (torch.cat(chunks, 1) - expected)[held.bool()].abs().max() < 2e-5 * expected.abs().max()


@pytest.mark.usefixtures("on_device")
@torch.no_grad()
def test_a_cache_for_windows_drops_keys_of_any_spec_of_distances(module: Callable[..., ModuleType]) -> None:
    text = "mask: [causal, {sliding_window: {size: runtime}}]\nscore: [expr: score * (1 + warmth), alibi]\n"
    own = module("warm_windows", f"{text}inputs: {{warmth: {{axes: [head]}}}}\nexports: [decode, transformers]\n")
    model, (ids, held), warmth = DECODERS["mistral"].made(), padded("left", length=14), torch.tensor((0.5, -0.2))
    model.set_attn_implementation(own.register())
    whole = model(ids, attention_mask=held, use_cache=False, warmth=warmth).logits
    cache = transformers.DynamicCache(config=model.config)
    chunks = [
        model(ids[:, first:past], attention_mask=held[:, :past], past_key_values=cache, warmth=warmth).logits
        for first, past in ((0, 6), (6, 12), (12, 13), (13, 14))
    ]
    assert cache.layers[0].keys.shape[2] == WINDOW["sliding_window"] - 1
    assert (torch.cat(chunks, 1) - whole)[held.bool()].abs().max() < 2e-5 * whole.abs().max()


@torch.no_grad()
def test_a_mask_may_be_written_to_between_calls(module: Callable[..., ModuleType]) -> None:
    own, layer = module(DECODERS["llama"].spec), SimpleNamespace(is_causal=True)
    q, k, v = (torch.randn(2, 2, n, 16) for n in (1, 8, 8))
    shorter, longer = (
        own.mask(2, 1, 8, q_offset=n - 1, attention_mask=torch.ones(2, n, dtype=torch.long)).contiguous()
        for n in (4, 6)
    )
    found = [own.attend(layer, q, k, v, mask)[0] for mask in (shorter, longer)]
    assert not torch.equal(*found)
    own.attend(layer, q, k, v, shorter)
    assert torch.equal(own.attend(layer, q, k, v, shorter.copy_(longer))[0], found[1])


def entries(q: torch.Tensor, k: torch.Tensor) -> tuple[tuple[str, int], ...]:
    return ("k_starts", 0), ("k_lens", k.shape[1]), ("q_start", k.shape[1] - q.shape[1])


def plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int = 64, **rows: torch.Tensor
) -> torch.Tensor:
    """The result of attention with padding and a window, computed with operations that a compiler knows."""
    first, end, start = (rows.get(name, torch.full((len(q),), x))[:, None] for name, x in entries(q, k))
    q_pos, k_pos = start + torch.arange(q.shape[1]), torch.arange(k.shape[1]) - first
    shown = (k_pos[:, None] <= q_pos[..., None]) & (k_pos >= 0)[:, None] & (k_pos < end - first)[:, None]
    shown &= k_pos[:, None] > q_pos[..., None] - window
    shown = (shown & ((q_pos >= 0) & (q_pos < end - first))[..., None])[:, None]
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    weights = torch.softmax(scores.masked_fill(~shown, -1e30), -1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


@pytest.mark.parametrize("side", ["left", "nothing"])
@pytest.mark.parametrize("name", ["llama", "phimoe"])
def test_a_compiled_model_asks_for_its_mask_without_a_break(
    name: str, side: str, module: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    (ids, held), model, of = padded(side), DECODERS[name].made(), DECODERS[name].spec
    mask = {} if side == "nothing" else {"attention_mask": held}
    expected = model(ids, use_cache=False, **mask).logits
    monkeypatch.setattr(module(of), "attention", plain)
    model.set_attn_implementation(module(of).register())
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    found = compiled(ids, use_cache=False, **mask).logits
    assert (found - expected)[held.bool()].abs().max() < 2e-5 * expected.abs().max()
    if side == "nothing":
        # whether position_ids pack sequences is only known on the device
        with pytest.raises(RuntimeError, match=f"{of}: position_ids pack sequences"):
            compiled(ids, position_ids=torch.arange(11).expand(2, -1) % 6, use_cache=False)


# starts of specs with a window: packed sequences have no padding, and each combination is traced by one test
ROTATED, PACKED = "rope: {layout: half}\n", "layout: packed\n"


def traced(more: str, side: str, module: Callable[..., ModuleType], number: int) -> tuple[Any, dict[str, Any]]:
    """A model with attention from a package of its own, and the arguments for the compiled model."""
    text = f"{more}mask: [causal, sliding_window: {{size: runtime}}]\nexports: [transformers]"
    name, (ids, held), model = more.partition(":")[0] or "dense", padded(side), DECODERS["mistral"].made()
    model.model.layers = model.model.layers[:1]  # a second layer would be traced through the same lines
    own = module(f"{name}_{number}", text)
    own.patch(model) if name == "rope" else model.set_attn_implementation(own.register())
    packed = {f"cu_seq_lens_{x}": torch.tensor([0, 11, 22]) for x in "qk"} | {f"max_length_{x}": 11 for x in "qk"}
    given = packed if name == "layout" else {"attention_mask": held} if side == "left" else {}
    return model, given | {"input_ids": ids, "use_cache": False}


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize(("more", "side"), [("", "left"), (ROTATED, "nothing"), (PACKED, "nothing")])
def test_models_of_two_packages_compile_in_one_process(
    more: str, side: str, module: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_twice = retracing.trace_twice(monkeypatch)
    for number in (1, 2):
        model, given = traced(more, side, module, number)
        trace_twice(model, **given)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize(("more", "side"), [("", "nothing"), (ROTATED, "left"), (PACKED, "nothing")])
def test_a_model_compiles_beside_a_default_device(more: str, side: str, module: Callable[..., ModuleType]) -> None:
    """With one, torch calls each function through one in Python, and some cannot be traced that way."""
    model, given = traced(more, side, module, 1)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    with torch.no_grad(), given["input_ids"].device:
        assert compiled(**given).logits.isfinite().all()


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("told", ["position_ids", "position_ids and a cache", "cu_seq_lens"])
@pytest.mark.parametrize("name", ["llama", "phimoe"])
def test_packed_sequences_do_not_see_each_other(name: str, told: str, module: Callable[..., ModuleType]) -> None:
    cuts = torch.tensor([0, 3, 9, 12], dtype=torch.int32)
    positions = torch.cat([torch.arange(n) for n in cuts.diff().tolist()])[None]
    more: dict[str, Any] = {}
    if told == "cu_seq_lens":
        more = {f"cu_seq_lens_{x}": cuts for x in "qk"} | {f"max_length_{x}": 6 for x in "qk"}
    ids, held = padded("nothing", 1, 12)

    windowed = "layout: packed\nmask: [causal, sliding_window: {size: runtime}]\nexports: [transformers]"
    own = (module("packed_causal") if name == "llama" else module("packed_window", windowed)).register()

    def call(model: Any) -> torch.Tensor:
        # with a cache, `eager` ignores positions
        cached = told != "position_ids" and model.config._attn_implementation == own
        logits: torch.Tensor = model(ids, position_ids=positions, use_cache=cached, **more).logits
        return logits

    agree(DECODERS[name].made(), own, held, call)


@pytest.mark.usefixtures("on_device")
def test_an_encoders_sequences_are_cut(module: Callable[..., ModuleType]) -> None:
    q, cuts = torch.randn(1, 2, 9, 16), torch.tensor([0, 4, 9])
    given = {f"cu_seq_lens_{x}": cuts for x in "qk"} | {f"max_length_{x}": 5 for x in "qk"}
    out, _ = module("packed_full").attend(SimpleNamespace(is_causal=False), q, q, q, None, **given)
    plain = torch.nn.functional.scaled_dot_product_attention
    expected = torch.cat([plain(x, x, x) for x in (q[:, :, :4], q[:, :, 4:])], 2).transpose(1, 2)
    assert (out - expected).abs().max() < 1e-5


@pytest.mark.usefixtures("on_device")
def test_rows_of_a_batch_are_sequences_where_nothing_packs_them(module: Callable[..., ModuleType]) -> None:
    ids, held = padded("nothing")
    own = module("packed_causal").register()
    agree(DECODERS["llama"].made(), own, held, lambda model: model(ids, use_cache=False).logits)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("side", ["left", "right"])
def test_checkpoints_run_the_same_attention_again(side: str, module: Callable[..., ModuleType]) -> None:
    ids, held = padded(side)
    model = DECODERS["llama"].made().train()
    own = module("causal").register()
    model.gradient_checkpointing_enable({"use_reentrant": side == "left"})
    agree(model, own, held, lambda model: model(ids, attention_mask=held).logits)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("side", ["left", "right"])
def test_an_encoder_sees_all_but_padding(side: str, module: Callable[..., ModuleType]) -> None:
    ids, held = padded(side)
    family = Family("BertModel", "full", {"type_vocab_size": 1, "num_key_value_heads": 2}, TINY | {"hidden_size": 32})
    own = module("full").register()
    agree(family.made(), own, held, lambda model: model(ids, attention_mask=held).last_hidden_state)


T5_TINY: dict[str, Any] = {
    "vocab_size": 40,
    "d_model": 16,
    "d_kv": 16,
    "d_ff": 16,
    "num_layers": 2,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
    "eos_token_id": None,
    "initializer_factor": 2.0,
}


@pytest.mark.usefixtures("on_device")
def test_t5_has_its_bias_and_crosses_from_decoder_to_encoder(module: Callable[..., ModuleType]) -> None:
    model = Family("T5ForConditionalGeneration", "t5", tiny=T5_TINY, config="T5Config").made()
    (ids, held), (decoded, _) = padded("right", length=7), padded("nothing", length=11)
    (text,) = re.findall("```yaml\n# specs/t5.yaml\nname: t5\n(.*?)```", PAGE.read_text(), re.DOTALL)
    own = module("t5", text).register()
    shown = torch.ones_like(decoded)

    def call(model: Any) -> torch.Tensor:
        made = model(input_ids=ids, attention_mask=held, decoder_input_ids=decoded, use_cache=False)
        logits: torch.Tensor = made.logits
        return logits

    agree(model, own, shown, call)
    found = []
    for implementation, cache in (("eager", "dynamic"), (own, "dynamic"), (own, "static")):
        model.set_attn_implementation(implementation)
        more = {"do_sample": False, "cache_implementation": cache, "disable_compile": True}
        found.append(model.generate(ids, attention_mask=held, max_new_tokens=4, **more))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


T5_TABLE = "heads: equal\nscore: [relative_bias: {buckets: 8, max_distance: 10}]\nexports: [transformers]\n"


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("side", ["left", "right", "nothing"])
@pytest.mark.parametrize("kind", ["T5", "MT5", "UMT5"])  # the last one has a table in each layer
def test_encoders_like_t5_give_their_tables(kind: str, side: str, module: Callable[..., ModuleType]) -> None:
    # with larger weights, gradients of UMT5 in float32 are off by 3e-4
    model = Family(f"{kind}EncoderModel", "", {"initializer_factor": 1.0}, T5_TINY, f"{kind}Config").made()
    (ids, held), own = padded(side, length=33), module("tabled", T5_TABLE)
    mask = {} if side == "nothing" else {"attention_mask": held}

    def call(model: Any) -> torch.Tensor:
        states: torch.Tensor = model(ids, **mask).last_hidden_state
        return states

    agree(model, own.patch, held, call)
    assert own.patch(copy.deepcopy(model)) == own.patch(model) == model.config._attn_implementation
    own.unpatch(model)
    agree(model, "sdpa", held, call)  # its own bias again
    with pytest.raises(ValueError, match="tabled: expected a model that is patched"):
        own.unpatch(model)


@pytest.mark.usefixtures("on_device")
def test_tables_that_are_not_the_specs_are_refused(module: Callable[..., ModuleType]) -> None:
    own = module("tabled", T5_TABLE)
    whole = Family("T5Model", "", tiny=T5_TINY, config="T5Config").made()
    with pytest.raises(ValueError, match="tabled: at a distance of -1 the layer reads entry 0, the spec 5; encoders"):
        own.patch(whole)
    assert own.patch(whole.encoder) == own.register()
    other = Family("T5EncoderModel", "", {"relative_attention_num_buckets": 10}, T5_TINY, "T5Config").made()
    with pytest.raises(ValueError, match="tabled: the layer's table has 10 entries, the spec's 8"):
        own.patch(other)
    far = Family("T5EncoderModel", "", {"relative_attention_max_distance": 30}, T5_TINY, "T5Config").made()
    with pytest.raises(ValueError, match=r"tabled: at a distance of -?\d+ the layer reads entry \d, the spec \d"):
        own.patch(far)
    with pytest.raises(ValueError, match="tabled: expected a model with a table of biases, as T5 has, got a Llama"):
        own.patch(Family("LlamaModel", "").made())
    layer, q, k = SimpleNamespace(is_causal=False), torch.randn(1, 2, 9, 16), torch.randn(1, 2, 5, 16)
    for bias in (None, torch.zeros(1, 2, 9, 9)):
        with pytest.raises(ValueError, match=r"the layer has no bias or one of all pairs: `patch\(model\)` has layers"):
            own.attend(layer, q, q, q, None, position_bias=bias)
    with pytest.raises(ValueError, match="tabled: the layer has 9 queries and 5 keys, the spec reads both at"):
        own.attend(layer, q, k, k, None, position_bias=torch.zeros(2, 8))


@pytest.mark.usefixtures("on_device")
def test_queries_of_another_sequence_see_all_keys_that_are_no_padding(module: Callable[..., ModuleType]) -> None:
    q, k, v = torch.randn(2, 2, 9, 16), torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 16)
    held = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    sizes = {"batch_size": 2, "q_length": 9, "kv_length": 5}
    mask = module("full").mask(
        **sizes, mask_function=masking.bidirectional_mask_function, attention_mask=held, device=held.device
    )
    out, _ = module("full").attend(SimpleNamespace(is_causal=False), q, k, v, mask)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, held[:, None, None])
    assert (out.transpose(1, 2) - expected).abs().max() < 1e-5


@pytest.mark.usefixtures("on_device")
def test_an_image_and_a_prompt_are_a_prefix(module: Callable[..., ModuleType]) -> None:
    seen = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    seen |= {"image_size": 8, "patch_size": 4, "projection_dim": 16}
    text = TINY | {"model_type": "gemma", "num_hidden_layers": 1}
    tiny = {"text_config": text, "vision_config": seen | {"model_type": "siglip_vision_model"}}
    tiny |= {"image_token_index": 39, "image_token_id": 39, "projection_dim": 16, "hidden_size": 16}
    model = Family("PaliGemmaForConditionalGeneration", "prefix_lm", tiny=tiny, config="PaliGemmaConfig").made()
    torch.manual_seed(3)
    image, ids = torch.randn(2, 3, 8, 8), torch.randint(2, 38, (2, 11))
    held, suffix = torch.ones_like(ids), torch.zeros_like(ids)
    held[0, :2] = 0
    ids[0, 2:6] = ids[1, :4] = 39
    suffix[:, 8:] = 1
    given = {"pixel_values": image, "attention_mask": held, "token_type_ids": suffix, "labels": ids}
    agree(model, module("prefix_lm").register(), held, lambda model: model(input_ids=ids, **given).logits)


def state(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


# the result of `mask` for layers with a window if nothing is padded
WINDOWED = torch.empty(1, 0, 8, 1, dtype=torch.int32)


def attend(module: ModuleType, *, causal: bool = True, mask: object = None, **given: Any) -> None:
    """Calls a spec's attention as a layer does."""
    q = state(1, 2, 4, 16)
    module.attend(SimpleNamespace(is_causal=causal), q, q, q, mask, **given)


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("causal", {"causal": False}, "causal: expected a causal layer, as the spec hides later keys"),
        ("causal", {"is_causal": False}, "causal: expected a causal layer"),
        ("full", {}, "full: expected a layer that is not causal, as the spec shows later keys"),
        ("causal", {"sliding_window": 7}, "causal: the layer has a window of 7 keys, the spec none: it needs "),
        ("sliding_window", {}, "the spec has a window of 1024 keys, the layer one of None; size: runtime takes any"),
        ("sliding_window", {"sliding_window": 7}, "the spec has a window of 1024 keys, the layer one of 7"),
        ("causal", {"softcap": 30.0}, "causal: the layer caps scores at 30.0, the spec does not"),
        ("softcap_window", {"softcap": 30.0}, "softcap_window: the spec caps scores at 50.0, the layer at 30.0"),
        ("softcap_window", {}, "the spec caps scores at 50.0, the layer at None"),
        ("causal", {"s_aux": state(2)}, "causal: the layer has sinks, the spec none"),
        ("causal", {"position_bias": state(1)}, "causal: the layer adds a bias, the spec none"),
        ("pair_bias", {"causal": False}, "pair_bias: the spec adds a bias, the layer has none"),
        (
            "causal",
            {"dropout": 0.1},
            "the layer drops a share 0.1 of the weights, the spec none: it needs dropout: true",
        ),
        ("runtime_window", {"window": 3}, r"runtime_window: layers themselves give window \(their sliding_window\)"),
        ("runtime_window", {"sliding_window": 7, "window": 3}, "window"),
        ("gpt2_dropout", {"dropout": 0.5, "seed": None}, "layers themselves give dropout_p, seed: leave that out"),
        ("pair_bias", {"position_bias": state(1, 2, 4, 4), "bias": state(1)}, "layers themselves give bias: leave"),
        ("causal", {"output_attentions": True}, "output_attentions needs eager"),
        ("causal", {"cache": object()}, "pages of continuous batching need another attention"),
        ("causal", {"indices": state(1, 4, 2)}, "causal: the layer picks keys for each query, the spec does not"),
        ("causal", {"block_indices": state(1, 4, 2)}, "causal: the layer picks keys for each query"),
        ("sink_window", {"s_aux": state(2), "sliding_window": 128, "sinks": state(2)}, "the layer gives its sinks as"),
        ("causal", {"mask": WINDOWED}, "causal: the layer has a window of 7 keys, the spec none"),
        ("sliding_window", {"mask": WINDOWED}, "the spec has a window of 1024 keys, the layer one of 7"),
        ("packed_causal", {"cu_seq_lens_q": state(2)}, "packed_causal: expected cu_seq_lens_k beside cu_seq_lens_q"),
        ("packed_causal", {"mask": (None, None, 7)}, "packed_causal: the layer has a window of 7 keys, the spec none"),
        ("causal", {"cu_seq_lens_q": state(2)}, "causal: cu_seq_lens_q packs sequences"),
        ("causal", {"mask": state(1, 1, 4, 4)}, r"expected no ready mask, .* got torch.Size\(\[1, 1, 4, 4\]\)"),
        ("causal", {"mask": state(1, 1, 1, 4).int()}, "causal: expected no ready mask"),
        ("causal", {"mask": state(1, 4)}, "expected no ready mask, but a 2-D attention_mask of the model"),
        ("packed_causal", {"mask": state(1, 1, 4, 4)}, "packed_causal: expected no ready mask, got a Tensor"),
    ],
)
def test_what_a_layer_says_and_the_spec_does_not_is_refused(
    name: str, given: dict[str, Any], told: str, module: Callable[..., ModuleType]
) -> None:
    with pytest.raises(ValueError, match=told):
        attend(module(name), **given)


BATCH: dict[str, Any] = {"batch_size": 2, "q_length": 6, "kv_length": 6}
ALL = {"mask_function": masking.bidirectional_mask_function}
BLOCKS = masking.blockwise_overlay(torch.tensor([[-1, 0, 0, -1, 1, 1]] * 2))
CHUNKS = {"local_size": 4, "config": SimpleNamespace(attention_chunk_size=4)}


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("causal", {"use_vmap": True}, "causal: the model joins a mask of its own to the usual one"),
        ("causal", ALL, "asks for a mask that shows later keys"),
        ("full", {}, "full: the model asks for a mask that hides keys, the spec shows all"),
        (
            "causal",
            {"mask_function": masking.or_masks(masking.causal_mask_function, BLOCKS)},
            "causal: position_ids pack sequences, or blocks see later keys",
        ),
        (
            "runtime_window",
            {"mask_function": masking.or_masks(masking.causal_mask_function, BLOCKS), "local_size": 3},
            "runtime_window: position_ids pack sequences, or blocks see later keys",
        ),
        (
            "prefix_lm",
            {"mask_function": masking.or_masks(masking.causal_mask_function, BLOCKS)},
            "prefix_lm: position_ids pack sequences, or blocks other than a prefix see later keys",
        ),
        ("prefix_lm", {"kv_offset": 3, "q_offset": 3}, "prefix_lm: the spec counts keys from the first one"),
        (
            "causal",
            {"attention_mask": torch.tensor([[1, 1, 1, 0, 1, 1], [1] * 6]).bool()},
            "causal: expected an attention_mask with padding on the left or right, got holes",
        ),
        ("packed_causal", {"attention_mask": torch.ones(2, 6).bool()}, "packed_causal: padding takes a spec of the"),
        ("packed_full", {"attention_mask": torch.ones(2, 6).bool()} | ALL, "packed_full: padding takes a spec of the"),
        ("packed_full", {}, "packed_full: the model asks for a mask that hides keys"),
        ("causal", CHUNKS | {"q_length": 1, "q_offset": 5}, "causal: the model has layers that see chunks of 4 keys"),
        ("packed_causal", CHUNKS, "packed_causal: the model has layers that see chunks of 4 keys"),
        ("packed_causal", {"q_offset": 3, "kv_length": 9}, "packed_causal: a cache takes a spec of the dense layout"),
        # a static cache has unused slots, which would be read as keys
        ("packed_causal", {"kv_length": 9}, "packed_causal: a cache takes a spec of the dense layout"),
        (
            "packed_causal",
            {"mask_function": masking.or_masks(masking.causal_mask_function, BLOCKS)},
            "packed_causal: blocks see later keys, which the spec hides",
        ),
        ("packed_causal", ALL, "packed_causal: the model asks for"),
        # such a model calls attention with a mask other than the one it asked for, or fails before that
        ("causal", {"allow_is_causal_skip": False}, "causal: the model reads a mask of all pairs itself"),
        ("packed_causal", {"allow_is_causal_skip": False}, "packed_causal: the model reads a mask of all pairs itself"),
    ],
)
def test_a_mask_that_the_spec_does_not_have_is_refused(
    name: str, given: dict[str, Any], told: str, module: Callable[..., ModuleType]
) -> None:
    with pytest.raises(ValueError, match=told):
        module(name).mask(**(BATCH | given))


BLOOM: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16, "n_layer": 1, "n_head": 4}
MASKED_BY_THEMSELVES = {
    "bloom": Family("BloomForCausalLM", "causal", tiny=BLOOM),
    # vision layers ask for attention by name, text layers do not
    "git": Family(
        "GitForCausalLM",
        "causal",
        {"num_attention_heads": 4, "vision_config": {"image_size": 8, "patch_size": 4, "num_hidden_layers": 1}},
    ),
    # layers add the mask to one of their own; for windows, they ask for it as any model does
    "doge": Family("DogeForCausalLM", "causal", {"sliding_window": 3}),
}


@pytest.mark.parametrize("side", ["left", "nothing"])
@pytest.mark.parametrize("name", MASKED_BY_THEMSELVES)
def test_layers_that_ask_for_no_attention_by_name_are_refused(
    name: str, side: str, module: Callable[..., ModuleType]
) -> None:
    """They would see later keys and padding: they take None for no mask, and add numbers of entries to scores."""
    (ids, held), model = padded(side), MASKED_BY_THEMSELVES[name].made()
    model.config._attn_implementation = module("causal").register()  # as `from_pretrained` leaves it
    with pytest.raises(ValueError, match=f"causal: layers of {name} make attention, or its mask, themselves"):
        model(ids, attention_mask=held, use_cache=False)


@pytest.mark.parametrize("name", MASKED_BY_THEMSELVES)
def test_their_configurations_may_be_derived_from(
    name: str, module: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MASKED_BY_THEMSELVES[name].made()
    own = type("Own", (type(model.config),), {"model_type": "own", "__module__": __name__})
    monkeypatch.setattr(model.config, "__class__", own)
    model.config._attn_implementation = module("causal").register()
    with pytest.raises(ValueError, match="causal: layers of own make attention, or its mask, themselves"):
        model(padded("nothing")[0], use_cache=False)


@pytest.mark.parametrize("name", MASKED_BY_THEMSELVES)
def test_a_compiler_finds_out_which_layers_ask_for_attention(name: str, module: Callable[..., ModuleType]) -> None:
    model, (ids, _) = MASKED_BY_THEMSELVES[name].made(), padded("nothing")
    model.config._attn_implementation = module("causal").register()
    torch.compiler.reset()
    with pytest.raises(Exception, match=f"layers of {name} make attention, or its mask, themselves"):
        torch.compile(model, backend="eager")(ids, use_cache=False)


PICKS_LAYERS = {
    "falcon": Family("FalconForCausalLM", "causal", {"num_attention_heads": 4}, BLOOM),
    "gptj": Family("GPTJForCausalLM", "causal", {"n_embd": 16, "rotary_dim": 4}, BLOOM),
}


@pytest.mark.parametrize("name", PICKS_LAYERS)
def test_models_that_have_layers_by_name_fail_as_the_docs_say(name: str, module: Callable[..., ModuleType]) -> None:
    family, registered = PICKS_LAYERS[name], module("causal").register()
    with pytest.raises(KeyError, match=f"^'{registered}'$"):
        family.made(registered)
    model = family.made()
    before = model.config._attn_implementation
    model.set_attn_implementation(registered)
    assert model.config._attn_implementation == before != registered


def test_one_token_waits_for_nothing(module: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    held = torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]).bool()
    step = BATCH | {"q_length": 1, "q_offset": 5}
    with monkeypatch.context() as watched:
        watched.setattr(torch.Tensor, "__bool__", lambda x: pytest.fail("a look at the device"))
        made = module("causal").mask(**step, attention_mask=held)
        late = module("causal").mask(**(step | {"q_offset": torch.tensor(5)}))
    assert late[..., 0, 0].tolist() == [[0, 6, 5, 6], [0, 6, 5, 6]]
    assert made[..., 0, 0].tolist() == [[1, 6, 4, 5], [0, 6, 5, 6]]
    # a mistake is found on the device instead
    with pytest.raises(RuntimeError, match="causal: expected an attention_mask with padding on the left or right"):
        module("causal").mask(**step, attention_mask=held & (torch.arange(6) != 3))


def test_a_compiled_model_tells_of_packed_sequences_by_their_cuts(
    module: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = module("packed_causal")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert packed.mask(**BATCH, mask_function=BLOCKS) is None
    with pytest.raises(ValueError, match="packed_causal: compiled models get sequences by cu_seq_lens_q"):
        attend(packed)


@pytest.mark.parametrize("given", [{"use_cache": False}, {}, {"attention_mask": torch.ones(1, 6)}])
@pytest.mark.parametrize("name", ["causal", "prefix_lm"])
def test_packing_is_refused_by_a_dense_spec(
    name: str, given: dict[str, Any], module: Callable[..., ModuleType]
) -> None:
    model, (ids, _) = DECODERS["llama"].made(), padded("nothing", 1, 6)
    model.set_attn_implementation(module(name).register())
    with pytest.raises(ValueError, match=f"{name}: position_ids pack sequences"):
        model(ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]), **given)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_positions_that_are_written_to_are_read_again(mode: Any, module: Callable[..., ModuleType]) -> None:
    model, (ids, _) = DECODERS["llama"].made(), padded("nothing", 1, 6)
    model.set_attn_implementation(module("packed_causal").register())
    one, two = torch.tensor([[0, 1, 2, 0, 1, 2]]), torch.tensor([[0, 0, 1, 2, 3, 4]])
    with mode():
        positions = one.clone()
        model(ids, position_ids=positions)
        found = model(ids, position_ids=positions.copy_(two)).logits
        assert torch.equal(found, model(ids, position_ids=two.clone()).logits)


@pytest.mark.usefixtures("on_device")
def test_positions_are_looked_at_once(module: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    model, (ids, _), looks = DECODERS["llama"].made(), padded("nothing", 1, 6), []
    for name, look in (("causal", "_check_positions"), ("packed_causal", "_cuts_of")):
        own = module(name)
        found = getattr(own, look)
        monkeypatch.setattr(own, look, lambda *given, of=name, found=found: looks.append(of) or found(*given))
        model.set_attn_implementation(own.register())
        model(ids)
    assert looks == ["causal", "packed_causal"]


def test_a_name_that_switches_on_other_code_is_refused(module: Callable[..., ModuleType]) -> None:
    with pytest.raises(ValueError, match=r"name: 'flash' in it switches on other code of transformers"):
        module("causal").register("my_flash")
    assert module("causal").register("mine") == "mine"
    assert "mine" in transformers.AttentionMaskInterface._global_mapping


def test_nothing_is_counted_where_all_lines_up(module: Callable[..., ModuleType]) -> None:
    mask = module("causal").mask
    assert mask(**BATCH) is None
    assert mask(**BATCH, attention_mask=torch.ones(2, 6).bool()) is None
    encoder = {"mask_function": masking.bidirectional_mask_function, "attention_mask": torch.ones(2, 6).bool()}
    assert module("full").mask(**BATCH, **encoder) is None
    assert module("prefix_lm").mask(**BATCH, **encoder)[..., 0, 0].tolist() == [[6], [6]]
    assert mask(2, 1, 6, q_offset=5) is None
    # except for a window, which layers may only know from the mask
    assert mask(**BATCH, local_size=4).shape == (2, 0, 5, 1)
    # keys that a mask does not cover are padding, as in the library's other attention
    made = mask(2, 2, 6, q_offset=4, attention_mask=torch.ones(2, 2).bool())
    assert made[..., 0, 0].tolist() == [[0, 2, 4, 6], [0, 2, 4, 6]]
    # a sliding-window cache has unused slots
    assert mask(2, 2, 9, q_offset=3)[..., 0, 0].tolist() == [[0, 9, 3, 5], [0, 9, 3, 5]]
    # a static cache has more slots than there are tokens, and only the device knows how many tokens
    made = mask(2, 1, 9, q_offset=torch.tensor(5))
    assert made[..., 0, 0].tolist() == [[0, 9, 5, 6], [0, 9, 5, 6]]


@pytest.mark.usefixtures("on_device")
def test_dropout_draws_by_the_generator_of_torch(module: Callable[..., ModuleType]) -> None:
    q = torch.randn(1, 2, 8, 16)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        layer = SimpleNamespace(is_causal=True)
        outs.append(module("gpt2_dropout").attend(layer, q, q, q, None, dropout=0.5)[0])
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


@pytest.mark.usefixtures("on_device")
def test_other_inputs_are_keywords_of_the_models_forward(module: Callable[..., ModuleType]) -> None:
    text = "mask: [causal]\nscore: [expr: score * heat]\ninputs: {heat: {axes: [head]}}\nexports: [transformers]\n"
    heated, q = module("heated", text), torch.randn(1, 2, 8, 16)
    with pytest.raises(TypeError, match="heated: the model's forward needs the keyword 'heat'"):
        attend(heated)
    layer = SimpleNamespace(is_causal=True)
    out, weights = heated.attend(layer, q, q, q, None, heat=torch.full((2,), 2.0))
    expected, _ = module("causal").attend(layer, 2 * q, q, q, None)
    assert weights is None
    assert (out - expected).abs().max() < 1e-5


def test_the_first_training_step_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    block, _ = re.findall("```python\n(import torch\n.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(block, str(PAGE), "exec"), {})
    losses = [float(line) for line in capsys.readouterr().out.split()]
    assert len(losses) == 3
    assert losses[2] < losses[1] < losses[0]


@pytest.mark.skipif(devices.GPU, reason="the page's tensors are on the CPU")
def test_each_layer_learns_inputs_of_its_own_as_on_the_page(module: Callable[..., ModuleType]) -> None:
    (text,) = re.findall("```yaml\n# specs/warm.yaml\nname: warm\n(.*?)```", PAGE.read_text(), re.DOTALL)
    module("warm", text)
    _, block = re.findall("```python\n(import torch\n.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(block.replace("from generated.", f"from {PACKAGES}."), str(PAGE), "exec"), names)
    model, ids = names["model"], names["ids"]
    layers = [layer.self_attn for layer in model.model.layers]
    assert names["tokens"].shape == (2, 16)
    grads = [layer.warmth.grad for layer in layers]
    assert all(grad.abs().min() > 0 for grad in grads) and not torch.allclose(*grads)
    assert all(layer.warmth.abs().min() > 0 for layer in layers)
    assert "model.layers.1.self_attn.warmth" in model.state_dict()

    # in these layers scores are scaled as queries are
    for layer in layers:
        torch.nn.init.normal_(layer.warmth)
        torch.nn.init.normal_(layer.q_proj.weight, std=0.5)
        torch.nn.init.normal_(layer.k_proj.weight, std=0.5)
    plain = copy.deepcopy(model)
    for layer in plain.model.layers:
        rows = layer.self_attn.warmth.detach().exp().repeat_interleave(8)
        layer.self_attn.q_proj.weight.data *= rows[:, None]
        layer.self_attn._forward_pre_hooks.clear()
    plain.set_attn_implementation("eager")
    assert (model(ids).logits - plain(ids).logits).abs().max() < 1e-5
    given = {"max_new_tokens": 6, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    own, wanted = (torch.stack(x.generate(ids, **given).logits) for x in (model, plain))
    assert (own - wanted).abs().max() < 1e-5


# -- rotation of queries and keys inside of attention --------------------------------------------------------------

Rotated = Callable[[str], tuple[ModuleType, list[bool]]]
ROTATED = {
    "llama": ("rotated", ""),
    "qwen3": ("rotated", ""),
    "mistral": ("rotated_window", "- sliding_window: {size: runtime}"),
}


@pytest.fixture
def rotated(module: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch) -> Rotated:
    """Makes the module that patches a class of models, and records for each call whether it got angles to rotate by."""

    def made(name: str) -> tuple[ModuleType, list[bool]]:
        spec_name, masks = ROTATED[name]
        text = f"rope: {{layout: half}}\nmask:\n- causal\n{masks}\nexports: [transformers]"
        own, seen = module(spec_name, text), []

        def watched(*given: Any, angles: Any = None, **more: Any) -> Any:
            seen.append(angles is not None)
            return own_attend(*given, angles=angles, **more)

        own_attend = own.attend
        monkeypatch.setattr(own, "attend", watched)
        return own, seen

    return made


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize(
    ("name", "side"),
    [("llama", "left"), ("llama", "right"), ("llama", "nothing"), ("qwen3", "nothing"), ("mistral", "left")],
)
def test_a_patched_model_is_its_eager_self(name: str, side: str, rotated: Rotated) -> None:
    own, seen = rotated(name)
    ids, held = padded(side)
    more: dict[str, Any] = {} if side == "nothing" else {"attention_mask": held}
    if side == "left":
        more["position_ids"] = (held.cumsum(1) - 1).clamp(min=0)

    def call(model: Any) -> torch.Tensor:
        if model.config._attn_implementation != "eager":
            own.patch(model)
        logits: torch.Tensor = model(ids, use_cache=False, **more).logits
        return logits

    agree(DECODERS[name].made(), own.register(), held, call)
    assert seen == [True, True]


def plainly_rotated(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    **more: Any,
) -> torch.Tensor:
    """The result of attention that rotates q and k itself, computed with operations that a compiler knows."""
    rows = torch.arange(q.shape[1])[None] if positions is None else positions
    halves = (cos[rows][:, :, None], sin[rows][:, :, None])
    turned = []
    for x in (q, k):
        (first, second), (c, s) = x.chunk(2, -1), halves
        turned.append(torch.cat((first * c - second * s, second * c + first * s), -1))
    return plain(*turned, v, **more)


def test_a_patched_model_compiles_without_a_break(
    module: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    (ids, held), model = padded("left"), DECODERS["qwen3"].made()
    expected = model(ids, attention_mask=held, use_cache=False).logits
    monkeypatch.setattr(module("llama3"), "attention", plainly_rotated)
    module("llama3").patch(model)
    torch.compiler.reset()
    found = torch.compile(model, backend="eager", fullgraph=True)(ids, attention_mask=held, use_cache=False).logits
    assert (found - expected)[held.bool()].abs().max() < 2e-5 * expected.abs().max()


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize(
    ("name", "length", "cache"), [("qwen3", 8, "static"), ("mistral", 5, "dynamic"), ("mistral", 5, "static")]
)
def test_a_patched_model_generates_the_same_tokens(name: str, length: int, cache: str, rotated: Rotated) -> None:
    own, seen = rotated(name)
    model, (ids, held) = DECODERS[name].made(), padded("left", length=length)
    more = {"do_sample": False, "cache_implementation": cache, "disable_compile": True, "max_new_tokens": 4}
    expected = model.generate(ids, attention_mask=held, **more)
    own.patch(model)
    assert torch.equal(model.generate(ids, attention_mask=held, **more), expected)
    # two layers, for the prompt and for three tokens after it
    assert seen == [True] * 2 + [False] * 6


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("batch", [1, 2])
def test_packed_sequences_are_rotated_inside(batch: int, module: Callable[..., ModuleType]) -> None:
    own = module("packed_rope")
    ids, held = padded("nothing", batch, 12)
    more: dict[str, Any] = {}
    if batch == 1:
        more["position_ids"] = torch.cat([torch.arange(n) for n in (3, 6, 3)])[None]

    def call(model: Any) -> torch.Tensor:
        if model.config._attn_implementation != "eager":
            own.patch(model)
        logits: torch.Tensor = model(ids, use_cache=False, **more).logits
        return logits

    agree(DECODERS["llama"].made(), own.register(), held, call)


@pytest.mark.usefixtures("on_device")
def test_angles_are_those_of_the_model(rotated: Rotated) -> None:
    stretched = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
    model = Family("LlamaForCausalLM", "", {"rope_parameters": stretched}).made()
    ids, _ = padded("nothing")
    expected = model(ids, use_cache=False).logits
    rotated("llama")[0].patch(model)
    assert (model(ids, use_cache=False).logits - expected).abs().max() < 2e-5 * expected.abs().max()


@pytest.mark.usefixtures("on_device")
def test_a_model_gets_its_own_attention_back(rotated: Rotated) -> None:
    own, seen = rotated("llama")
    model, (ids, _) = DECODERS["llama"].made(), padded("nothing")
    expected = model(ids).logits
    own.patch(model)
    assert own.patch(model) == model.config._attn_implementation
    own.unpatch(model)
    assert model.config._attn_implementation == "eager"
    assert torch.equal(model(ids).logits, expected)
    assert not seen
    with pytest.raises(ValueError, match="rotated: expected a model that is patched"):
        own.unpatch(model)


@pytest.mark.parametrize("first", ["the model", "the inner model", "another variant"])
def test_copies_and_parts_of_models_get_their_own_attention_back(
    first: str, rotated: Rotated, module: Callable[..., ModuleType]
) -> None:
    own, seen = rotated("llama")
    model, (ids, _) = DECODERS["llama"].made(), padded("nothing")
    expected = model(ids).logits
    (module("llama3") if first == "another variant" else own).patch(
        model.model if first == "the inner model" else model
    )
    own.patch(model)
    copied = copy.deepcopy(model)
    own.unpatch(model)
    assert copied.config._attn_implementation == own.register()
    copied(ids)
    assert seen == [True, True]
    own.unpatch(copied)
    for each in (model, copied):
        assert each.config._attn_implementation == "eager"
        assert torch.equal(each(ids).logits, expected)
        with pytest.raises(ValueError, match="rotated: expected a model that is patched"):
            own.unpatch(each)


@pytest.mark.usefixtures("on_device")
def test_a_patched_model_may_be_saved_whole(rotated: Rotated) -> None:
    own, calls = rotated("llama")
    model, (ids, held), file = DECODERS["llama"].made(), padded("left"), io.BytesIO()
    own.patch(model)
    torch.save(model, file)
    file.seek(0)
    found = [made(ids, attention_mask=held).logits for made in (model, torch.load(file, weights_only=False))]
    assert torch.equal(*found)
    assert calls == [True] * 4


def test_what_cannot_be_patched_is_refused(rotated: Rotated) -> None:
    own, _ = rotated("llama")
    with pytest.raises(ValueError, match=r"rotated: expected a model with layers of LlamaAttention, .* got a Gemma2"):
        own.patch(DECODERS["gemma2"].made())
    model = DECODERS["llama"].made()
    own.patch(model)
    layer, half = model.model.layers[0].self_attn, torch.ones(1, 11, 8)
    with pytest.raises(ValueError, match="rotated: expected angles of a head's 16 columns, got those of 8"):
        layer(torch.ones(2, 11, 16), position_embeddings=(half, half))
