"""Layers with generated attention give the results of the same layers in plain PyTorch, or a reason for having none."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import devices
import pytest
import retracing
import torch
import torch.nn.functional as F
import unformatted

from attnforge.language import exports, spec
from attnforge.render import render
from attnforge.source import resources
from attnforge.source.errors import SpecError

pytestmark = pytest.mark.slow

PACKAGES = "layers_of_attention"
B, T, HIDDEN, HEADS, D = 2, 9, 24, 4, 16
Score = Callable[[torch.Tensor, Any, torch.Tensor], torch.Tensor]
q, k = torch.arange(T)[:, None], torch.arange(T)
BEFORE = k <= q


def asked(name: str) -> str:
    """The text of a shipped spec, with `module` among its exports."""
    text = resources.variants()[name].read_text()
    found = re.search(r"^exports: \[(.*)\]\n", text, re.MULTILINE)
    wanted = [*(found[1].split(", ") if found else ()), "module"]
    return f"{re.sub('exports: .*', '', text)}\nexports: [{', '.join(dict.fromkeys(wanted))}]\n"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ModuleType]]:
    """Makes `module.py` for a shipped spec, or for a text."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / PACKAGES).mkdir()

    @functools.cache
    def made(name: str, text: str = "") -> ModuleType:
        path = folder / f"{name}.yaml"
        own = f"name: {name}\n{text}\n" if "exports:" in text else f"name: {name}\n{text}\nexports: [module]\n"
        path.write_text(own if text else asked(name))
        unformatted.write(path, folder / PACKAGES / name)
        importlib.invalidate_caches()
        return importlib.import_module(f"{PACKAGES}.{name}.module")

    sys.path.insert(0, str(folder))
    yield made
    sys.path.remove(str(folder))
    for loaded in [name for name in sys.modules if name.partition(".")[0] == PACKAGES]:
        del sys.modules[loaded]


def turned(x: torch.Tensor, dims: int, interleaved: bool, theta: float) -> torch.Tensor:
    """x (B, T, H, D) with pairs of its first columns rotated by the angles of their rows."""
    angles = torch.arange(x.shape[1])[:, None] * theta ** (-2 * torch.arange(dims // 2) / dims)
    head, rest = x[..., :dims], x[..., dims:]
    parts = head.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else head.chunk(2, -1)
    pairs = torch.complex(*parts) * torch.polar(torch.ones_like(angles), angles)[:, None]
    moved = (pairs.real, pairs.imag)
    return torch.cat((torch.stack(moved, -1).flatten(-2) if interleaved else torch.cat(moved, -1), rest), -1)


@dataclass(frozen=True)
class Case:
    """A spec, how its layer is made and called, and how it computes scores."""

    spec: str
    text: str = ""
    made: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    keep: torch.Tensor = BEFORE
    score: Score = lambda score, layer, x: score  # besides a given bias
    rope: tuple[int, bool, float] | None = None
    more: tuple[str, ...] = ()  # names in the state besides the usual ones


def decay(score: torch.Tensor, layer: Any, x: torch.Tensor) -> torch.Tensor:
    sums = F.logsigmoid(F.linear(x, layer.log_decay_proj.weight, layer.log_decay_proj.bias)).cumsum(1).transpose(1, 2)
    return score + sums[..., None] - sums[:, :, None]


def distances(score: torch.Tensor, layer: Any, x: torch.Tensor) -> torch.Tensor:
    made = F.linear(x, layer.distance_score_proj.weight, layer.distance_score_proj.bias).unflatten(-1, (HEADS, 33))
    return score + torch.stack([made[:, i, :, (k - i + 16).clamp(0, 32)] for i in range(T)], 2)


def moods(score: torch.Tensor, layer: Any, x: torch.Tensor) -> torch.Tensor:
    mood = F.linear(x, layer.mood_proj.weight, layer.mood_proj.bias).transpose(1, 2).repeat_interleave(2, 1)
    lift = F.linear(x, layer.lift_proj.weight, layer.lift_proj.bias)[:, None, None, :, 0]
    return score + mood[..., None] * mood[:, :, None] + lift * lift


def table(score: torch.Tensor, layer: Any, x: torch.Tensor) -> torch.Tensor:
    return score * layer.warmth.repeat_interleave(2)[:, None, None] + layer.near[:, (q - k).abs().clamp(max=3)]


def fading(score: torch.Tensor, layer: Any, x: torch.Tensor) -> torch.Tensor:
    slopes = torch.tensor([2.0 ** (-2 * (h + 1)) for h in range(HEADS)])
    return score - slopes[:, None, None] * (q - k).abs()


USUAL = {f"{x}_proj.weight" for x in "qkvo"}
WHOLE = {"bias": True, "qk_norm": True, "output_gate": True}
OF_WHOLE = (*(f"{x}_proj.bias" for x in "qkvog"), "g_proj.weight", "q_norm.weight", "k_norm.weight")
TABLE = """
mask: [causal]
score: [expr: "score * warmth + near[min(abs(q - k), 3)]"]
inputs: {near: {axes: [head, 4], grad: true}, warmth: {axes: [kv_head], grad: true}}"""
CASES = {
    "causal": Case("causal", made={"scale": 0.3, "v_head_dim": 8}),
    "rotated, with all that there is": Case(
        "gpt_oss", made=WHOLE | {"rope_theta": 500.0}, rope=(D, False, 500.0), more=(*OF_WHOLE, "sinks")
    ),
    "partly rotated": Case(
        "partly", "rope: {layout: interleaved, dims: 8}\nmask: [causal]", {"max_positions": 4}, rope=(8, True, 1e4)
    ),
    "window of a layer": Case("runtime_window", made={"window": 3}, keep=BEFORE & (q - k < 3)),
    "both sides": Case("full", keep=BEFORE | True),
    "decay": Case("log_decay", score=decay, more=("log_decay_proj.weight", "log_decay_proj.bias")),
    "slopes": Case("alibi", score=fading),
    "learned slopes": Case(
        "alibi",
        made={"learn": ("slopes",)},
        score=lambda score, layer, x: score - layer.slopes[:, None, None] * (q - k).abs(),
        more=("slopes",),
    ),
    "moods of keys": Case(
        "moods",
        "exports: [decode, module]\nmask: [causal]\nscore: [expr: 'score + mood[q] * mood[k] + lift * lift']\ninputs:\n"
        "  mood: {axes: [kv_head, batch, token], grad: true}\n  lift: {axes: [batch, key], grad: true}",
        score=moods,
        more=("mood_proj.weight", "mood_proj.bias", "lift_proj.weight", "lift_proj.bias"),
    ),
    "projected tables": Case(
        "shaw", score=distances, keep=BEFORE | True, more=("distance_score_proj.weight", "distance_score_proj.bias")
    ),
    "learned tables": Case("tables", TABLE, score=table, more=("near", "warmth")),
    "left out": Case(
        "left_out",
        "mask: [causal]\nscore: [expr: score * warmth + lift]\ninputs:\n"
        "  warmth: {axes: [kv_head], grad: true, default: 0.5}\n  lift: {axes: [batch, query], grad: true, default: 2}",
        score=lambda score, layer, x: score * 0.5 + 2,
    ),
    "some that were left out": Case(
        "left_out_tables",
        "mask: [causal]\nscore: [expr: 'score * warmth * calm + near[min(abs(q - k), 3)]']\ninputs:\n"
        "  warmth: {axes: [kv_head], grad: true, default: 0.5}\n  calm: {axes: [head], grad: true, default: 2}\n"
        "  near: {axes: [head, 4], grad: true, default: 0}",
        {"learn": ["near", "warmth"]},
        score=lambda score, layer, x: 2 * table(score, layer, x) - layer.near[:, (q - k).abs().clamp(max=3)],
        more=("near", "warmth"),
    ),
    "a handed bias": Case("pair_bias", given={"bias": torch.randn(B, HEADS, T, T)}, keep=BEFORE | True),
}


def made(case: Case, package: Callable[..., ModuleType]) -> Any:
    """The layer of a case with weights that are far from equal."""
    equal = "heads: equal" in (case.text or resources.variants()[case.spec].read_text())
    heads = {} if equal else {"num_kv_heads": 2}
    torch.manual_seed(0)
    layer = package(case.spec, case.text).Attention(HIDDEN, HEADS, head_dim=D, **heads, **case.made)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    return layer.to("cuda" if devices.GPU else "cpu")


def plain(layer: Any, case: Case, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
    """The expected result of the layer, computed from its weights with PyTorch operations."""

    def linear(part: Any, given: torch.Tensor) -> torch.Tensor:
        return F.linear(given, part.weight, part.bias)

    def normed(part: Any, heads: torch.Tensor) -> torch.Tensor:
        if not hasattr(part, "weight"):
            return heads
        return heads / (heads.square().mean(-1, keepdim=True) + 1e-6).sqrt() * part.weight

    keys = x if context is None else context
    queries = normed(layer.q_norm, linear(layer.q_proj, x).unflatten(-1, (HEADS, D)))
    keyed = normed(layer.k_norm, linear(layer.k_proj, keys).unflatten(-1, (-1, D)))
    values = linear(layer.v_proj, keys).unflatten(-1, (keyed.shape[2], -1))
    if case.rope:
        queries, keyed = turned(queries, *case.rope), turned(keyed, *case.rope)
    keyed, values = (each.repeat_interleave(HEADS // each.shape[2], 2) for each in (keyed, values))
    score = torch.einsum("bihd,bjhd->bhij", queries, keyed) * (layer.scale or D**-0.5)
    score = case.score(score, layer, x) + case.given.get("bias", 0.0)
    if context is None:
        score = score.masked_fill(~case.keep[: x.shape[1], : x.shape[1]], -math.inf)
    if hasattr(layer, "sinks"):
        score = torch.cat((score, layer.sinks[:, None, None].expand(*score.shape[:3], 1)), -1)
    weights = score.softmax(-1)[..., : keys.shape[1]]
    out = torch.einsum("bhij,bjhe->bihe", weights, values).flatten(-2)
    return linear(layer.o_proj, out * linear(layer.g_proj, x).sigmoid() if layer.g_proj is not None else out)


def results(call: Callable[[torch.Tensor], torch.Tensor], layer: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """The result of a call, and the gradients of x and of all weights."""
    x = x.clone().requires_grad_()
    out = call(x)
    torch.manual_seed(2)
    return [out.detach(), *torch.autograd.grad(out, [x, *layer.parameters()], torch.randn_like(out))]


def agree(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for own, plain in zip(found, expected, strict=True):
        assert (own - plain).abs().max() <= 2e-5 * plain.abs().max() + 1e-5


@pytest.fixture(autouse=True)
def on_device() -> Iterator[None]:
    """Creates all tensors where kernels run."""
    with devices.default():
        yield


@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_its_plain_self(name: str, package: Callable[..., ModuleType]) -> None:
    case = CASES[name]
    layer, x = made(case, package), torch.randn(B, T, HIDDEN)
    agree(results(lambda x: layer(x, **case.given), layer, x), results(lambda x: plain(layer, case, x), layer, x))
    assert set(layer.state_dict()) == USUAL | set(case.more)


def test_packed_sequences_do_not_see_each_other(package: Callable[..., ModuleType]) -> None:
    case = Case("packed_rope", made={"max_positions": 2}, rope=(D, False, 1e4))
    layer, x, cuts = made(case, package), torch.randn(T, HIDDEN), [0, 2, 9]
    packed = {"cu_seqlens": torch.tensor(cuts, dtype=torch.int32), "max_seqlen": 7}

    def each(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([plain(layer, case, x[None, first:past])[0] for first, past in itertools.pairwise(cuts)])

    agree(results(lambda x: layer(x, **packed), layer, x), results(each, layer, x))


@pytest.mark.parametrize("name", ["rotated, with all that there is", "decay", "learned tables", "projected tables"])
def test_no_tokens_and_no_sequences_give_none(name: str, package: Callable[..., ModuleType]) -> None:
    layer, x = made(CASES[name], package), torch.randn(B, T, HIDDEN)
    for empty in (x[:, :0], x[:0]):
        out, *gradients = results(layer, layer, empty)
        assert out.shape == empty.shape
        assert all(not gradient.any() for gradient in gradients)


@torch.no_grad()
def test_no_tokens_leave_a_cache_as_it_was(package: Callable[..., ModuleType]) -> None:
    layer, x = made(CASES["rotated, with all that there is"], package), torch.randn(B, T, HIDDEN)
    expected, cache = layer(x), layer.new_cache(B, T)
    found = [layer(part, cache=cache) for part in (x[:, :0], x[:, :5], x[:, :0], x[:, 5:])]
    agree([torch.cat(found, 1)], [expected])
    assert layer(x[:0], cache=layer.new_cache(0, T)).shape == (0, T, HIDDEN)


@pytest.mark.parametrize(("name", "first", "past"), [("gpt_oss", 0, 6), ("gpt_oss", 2, 7), ("full", 3, T)])
def test_padding_is_left_out(name: str, first: int, past: int, package: Callable[..., ModuleType]) -> None:
    case = next(case for case in CASES.values() if case.spec == name)
    layer, x = made(case, package), torch.randn(B, T, HIDDEN)
    ends = {"k_starts": [first, 0]} if first else {}
    ends |= {"k_lens": [past, T]} if past < T else {}
    out = layer(x, **{key: torch.tensor(rows, dtype=torch.int32) for key, rows in ends.items()})
    agree([out[:1, first:past], out[1:]], [plain(layer, case, x[:1, first:past]), plain(layer, case, x[1:])])


def test_keys_may_be_of_another_sequence(package: Callable[..., ModuleType]) -> None:
    case = CASES["both sides"]
    layer, x, context = made(case, package), torch.randn(B, T, HIDDEN), torch.randn(B, 5, HIDDEN)
    calls = (lambda x: layer(x, context), lambda x: plain(layer, case, x, context))
    agree(*(results(call, layer, x) for call in calls))
    out = layer(x, context, k_lens=torch.tensor([3, 5], dtype=torch.int32))
    agree([out[:1]], [plain(layer, case, x[:1], context[:1, :3])])


@pytest.mark.parametrize(
    "name", ["causal", "rotated, with all that there is", "window of a layer", "slopes", "decay", "moods of keys"]
)
def test_decoding_is_equal_token_by_token(name: str, package: Callable[..., ModuleType]) -> None:
    case = CASES[name]
    layer, x = made(case, package), torch.randn(B, T, HIDDEN)
    with torch.no_grad():
        expected, cache = plain(layer, case, x), layer.new_cache(B, T)
        found = [layer(part, cache=cache) for part in x.split([4, 1, 1, 3], 1)]
    agree([torch.cat(found, 1)], [expected])
    assert cache.seq_lens.tolist() == [T, T]


@pytest.mark.parametrize("name", ["causal", "rotated, with all that there is"])
@torch.no_grad()
def test_autocast_decodes_in_its_dtype(name: str, package: Callable[..., ModuleType]) -> None:
    layer, x = made(CASES[name], package), torch.randn(B, T, HIDDEN)
    with torch.autocast(x.device.type, torch.float16):
        expected, cache = layer(x), layer.new_cache(B, T)
        found = torch.cat([layer(part, cache=cache) for part in x.split([4, 1, 4], 1)], 1)
    assert cache.k.dtype == found.dtype == torch.float16
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=2e-2)


@torch.no_grad()
def test_prompts_of_different_lengths_go_on_where_each_ends(package: Callable[..., ModuleType]) -> None:
    case = CASES["rotated, with all that there is"]
    layer, x, lengths = made(case, package), torch.randn(B, T, HIDDEN), [2, 5]
    cache = layer.new_cache(B, 8)
    layer(x[:, :5], cache=cache)
    cache.keep(torch.tensor(lengths, dtype=torch.int32), 5)
    out = layer(x[:, 7:9], cache=cache)
    for b, length in enumerate(lengths):
        agree([out[b : b + 1]], [plain(layer, case, torch.cat((x[b, :length], x[b, 7:9]))[None])[:, -2:]])
    with pytest.raises(ValueError, match="cache: expected room for 9 tokens, got 8"):
        layer(x[:, :2], cache=cache)
    cache.keep(torch.tensor([1, 1], dtype=torch.int32))
    with pytest.raises(ValueError, match="cache: expected room for 9 tokens, got 8"):
        layer(x[:, :2], cache=cache)
    cache.keep(torch.tensor([1, 1], dtype=torch.int32), 1)
    layer(x[:, :2], cache=cache)
    for wrong, longest, told in (
        ([1, 1], None, "lengths: expected a tensor, got list"),
        (torch.tensor([1.0, 1.0]), None, "lengths: expected int32 or int64, got float32"),
        (torch.tensor([1]), None, r"lengths: expected shape \(2,\), got \(1,\)"),
        (torch.tensor([1, -1]), None, r"lengths: expected none below 0, got \[1, -1\]"),
        (torch.tensor([3, 2]), 2, "longest: expected at least the 3 tokens that a sequence keeps, got 2"),
        (torch.tensor([9, 9]), 2, "longest: expected at least the 3 tokens that a sequence keeps, got 2"),
        (torch.tensor([1, 1]), 9, "longest: expected at most 8, got 9"),
        (torch.tensor([1, 1]), -1, "longest: expected at least 0, got -1"),
        (torch.tensor([1, 1]), torch.tensor(1), "longest: expected an int, got Tensor"),
    ):
        with pytest.raises((TypeError, ValueError), match=told):
            cache.keep(wrong, longest)
    with pytest.raises(ValueError, match=f"cache: expected a batch of {B}, as it was made for, got 1"):
        layer(x[:1, :1], cache=cache)
    assert cache.seq_lens.tolist() == [3, 3]


@torch.no_grad()
def test_a_call_that_is_refused_leaves_a_cache_as_it_was(package: Callable[..., ModuleType]) -> None:
    layer, x = made(Case("paligemma"), package), torch.randn(B, T, HIDDEN)
    prefix, cache = torch.tensor([2, 3]), layer.new_cache(B, T)
    for part in x.split([5, T - 5], 1):
        with pytest.raises(ValueError, match="prefix_len: expected shape"):
            layer(part, cache=cache, prefix_len=torch.tensor([2, 3, 4]))
        found = layer(part, cache=cache, prefix_len=prefix)
    agree([found], [layer(x, prefix_len=prefix)[:, 5:]])
    assert cache.seq_lens.tolist() == [T, T]


def test_learned_values_of_packed_tokens_are_made_of_them(package: Callable[..., ModuleType]) -> None:
    """Whether or not the spec has a batch axis, which packed tensors lack."""
    text = "layout: packed\nmask: [causal]\nscore: [expr: 'score + decay[q] - decay[k]']\ninputs: {decay: {axes: AXES, "
    text += "grad: true, scan: cumsum}}"
    found = []
    for axes in ("[batch, token, head]", "[token, head]"):
        name = f"decaying_{len(found)}"
        layer = made(Case(name, text.replace("AXES", axes)), package)
        found.append((set(layer.state_dict()), set(inspect.signature(layer.forward).parameters)))
    assert found[0] == found[1] and "decay" not in found[1][1]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"num_heads": 0}, "num_heads: expected at least 1, got 0"),
        ({"num_kv_heads": 3}, "num_kv_heads: expected a divisor of the 4 heads, got 3"),
        ({"num_kv_heads": 0}, "num_kv_heads: expected a divisor of the 4 heads, got 0"),
        ({"hidden_size": 66}, "head_dim: expected one, as 66 columns do not make 4 equal heads"),
        ({"head_dim": 15}, "head_dim: expected an even number, as components turn in pairs, got 15"),
        ({"head_dim": -8}, "head_dim, v_head_dim: expected at least 1, got -8 and -8"),
        ({"v_head_dim": 0}, "head_dim, v_head_dim: expected at least 1, got 16 and 0"),
        ({"rope_theta": 0}, "rope_theta: expected more than 0, got 0"),
        ({"max_positions": -1}, "max_positions: expected at least 0, got -1"),
    ],
)
def test_a_layer_that_cannot_be_is_refused_when_it_is_made(
    given: dict[str, int], told: str, package: Callable[..., ModuleType]
) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        package("gpt_oss", "").Attention(**{"hidden_size": 64, "num_heads": 4, **given})


def test_what_a_cache_cannot_have_is_refused(package: Callable[..., ModuleType]) -> None:
    layer, x = made(CASES["causal"], package), torch.randn(B, T, HIDDEN)
    with pytest.raises(RuntimeError, match=r"q: decoding has no backward pass; call it under torch.no_grad\(\)"):
        layer(x, cache=layer.new_cache(B, T))
    with pytest.raises(ValueError, match="cache: expected no k_lens and k_starts beside it"):
        layer(x, cache=layer.new_cache(B, T), k_lens=torch.tensor([3, 5], dtype=torch.int32))
    with pytest.raises(TypeError, match="dtype: expected float16, bfloat16 or float32, got float8_e4m3fn"):
        layer.new_cache(B, T, dtype=torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="size: expected at least 0, got -1"):
        layer.new_cache(B, -1)
    with pytest.raises(TypeError, match="batch: expected an int, got str"):
        layer.new_cache("2", T)


@pytest.mark.parametrize(("layout", "rows", "axes"), [("dense", (T,), "B, T"), ("packed", (B, T), "N")])
def test_rows_with_other_axes_are_refused(
    layout: str, rows: tuple[int, ...], axes: str, package: Callable[..., ModuleType]
) -> None:
    """Before a projection mistakes one axis for another."""
    layer = made(Case(f"other_axes_{layout}", f"layout: {layout}\nmask: [causal]\nscore: [log_decay]"), package)
    given = {"cu_seqlens": torch.tensor([0, T], dtype=torch.int32), "max_seqlen": T} if layout == "packed" else {}
    with pytest.raises(ValueError, match=re.escape(f"x: expected shape ({axes}, hidden_size), got {(*rows, HIDDEN)}")):
        layer(torch.randn(*rows, HIDDEN), **given)


def test_rows_with_other_columns_are_refused(package: Callable[..., ModuleType]) -> None:
    layer = made(Case("full"), package)
    with pytest.raises(ValueError, match=f"^x: expected {HIDDEN} columns, got {HIDDEN + 1}$"):
        layer(torch.randn(B, T, HIDDEN + 1))
    for wrong in ((B, T, HIDDEN + 1), (T, HIDDEN)):
        told = re.escape(f"context: expected shape (B, Tk, {HIDDEN}), got {wrong}")
        with pytest.raises(ValueError, match=f"^{told}$"):
            layer(torch.randn(B, T, HIDDEN), context=torch.randn(wrong))


@pytest.mark.parametrize(
    ("longest", "error", "told"),
    [
        (None, TypeError, "an int, got NoneType; required: the longest sequence's length, or more"),
        (2.5, TypeError, "an int, got float"),
        (-1, ValueError, "at least 0, got -1"),
    ],
)
def test_a_longest_length_that_is_none_is_told(
    longest: Any, error: type[Exception], told: str, package: Callable[..., ModuleType]
) -> None:
    """Whether tables of angles are made first or kernels are launched right away."""
    for rope in ("", "rope: {layout: half}\n"):
        layer = made(Case(f"longest{len(rope)}", f"layout: packed\n{rope}mask: [causal]"), package)
        with pytest.raises(error, match=f"^max_seqlen: expected {told}$"):
            layer(torch.randn(T, HIDDEN), cu_seqlens=torch.tensor([0, T], dtype=torch.int32), max_seqlen=longest)


def test_tables_stay_exact_whatever_the_module_becomes(package: Callable[..., ModuleType]) -> None:
    module = package("gpt_oss", "")
    expected = torch.arange(8)[:, None] * 10000.0 ** (-2 * torch.arange(D // 2) / D)
    with torch.device("meta"):
        empty = module.Attention(HIDDEN, HEADS, head_dim=D, max_positions=8)
    for layer in (empty.to_empty(device="cpu"), empty.to(torch.bfloat16)):
        assert layer.cos.dtype == torch.float32
        assert (layer.cos.cpu() - expected.cpu().cos()).abs().max() < 1e-6
        assert (layer.sin.cpu() - expected.cpu().sin()).abs().max() < 1e-6


def test_a_layer_without_memory_takes_a_state_as_it_is(package: Callable[..., ModuleType]) -> None:
    """As when a checkpoint is loaded without a copy: tables, which it does not have, are made where the weights are."""
    layer, x = made(CASES["rotated, with all that there is"], package), torch.randn(B, T, HIDDEN)
    with torch.device("meta"):
        given = WHOLE | {"num_kv_heads": layer.num_kv_heads, "head_dim": D, "rope_theta": 500.0}
        other = package("gpt_oss", "").Attention(HIDDEN, HEADS, **given)
    other.load_state_dict(layer.state_dict(), assign=True)
    assert torch.equal(other(x), layer(x))
    assert other.cos.device == x.device


def test_weights_may_come_when_they_are_needed(package: Callable[..., ModuleType]) -> None:
    """As with offloading: the weights of a projection are on meta until it is called."""
    layer, x = made(CASES["rotated, with all that there is"], package), torch.randn(B, T, HIDDEN)
    want, weight = layer(x), layer.q_proj.weight

    def come(projection: torch.nn.Module, _: object) -> None:
        projection.weight = weight

    layer.q_proj.register_forward_pre_hook(come)
    layer.q_proj.weight = torch.nn.Parameter(weight.to("meta"))
    assert torch.equal(layer(x), want)


@pytest.mark.parametrize("positions", [4, T])
def test_a_layer_trains_after_its_tables_were_made_in_inference_mode(
    positions: int, package: Callable[..., ModuleType]
) -> None:
    """Whether the tables grew or the layer was moved."""
    case = Case("gpt_oss", made={"max_positions": positions}, rope=(D, False, 1e4))
    layer, x = made(case, package), torch.randn(B, T, HIDDEN)
    with torch.inference_mode():
        layer(x) if positions < T else layer.float()
    agree(results(layer, layer, x), results(lambda x: plain(layer, case, x), layer, x))


def test_positions_are_rows_of_the_tables(package: Callable[..., ModuleType]) -> None:
    case = CASES["rotated, with all that there is"]
    layer, x = made(case, package), torch.randn(B, T, HIDDEN)
    tables = layer.angles(T)
    moved = layer(x, positions=torch.arange(T).flip(0).expand(B, T), tables=tuple(t.flip(0) for t in tables))
    agree([moved.detach()], [layer(x).detach()])


def test_a_layer_compiles_without_a_break_and_its_tables_grow(package: Callable[..., ModuleType]) -> None:
    layer = made(Case("gpt_oss", made=WHOLE | {"max_positions": 4}), package)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True, dynamic=True)
    for tokens in (6, T):
        x = torch.randn(B, tokens, HIDDEN)
        agree([compiled(x).detach()], [layer(x).detach()])
    assert len(layer.cos) >= T


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_learned_inputs_begin_at_their_defaults(dtype: torch.dtype, package: Callable[..., ModuleType]) -> None:
    module, slopes = package("alibi", ""), torch.tensor([2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)])
    layer = module.Attention(HIDDEN, HEADS, head_dim=D, learn="slopes", dtype=dtype)
    assert layer.slopes.dtype == dtype
    assert torch.equal(layer.slopes, slopes.to(dtype))
    with torch.device("meta"):
        assert module.Attention(HIDDEN, HEADS, head_dim=D, learn=("slopes",)).slopes.shape == (HEADS,)
    text = "mask: [causal]\nscore: [expr: score * calm]\ninputs:\n"
    text += "  calm: {axes: [head], grad: true, default: '(h + 1) / 7 * log(heads) - 0.7'}"
    layer = package("calmed", text).Attention(HIDDEN, HEADS, head_dim=D, learn=("calm",), dtype=dtype)
    calm = torch.tensor([(h + 1) / 7 * math.log(HEADS) - 0.7 for h in range(HEADS)])
    torch.testing.assert_close(layer.calm, calm.to(dtype), rtol=1e-6, atol=0.0)
    case = CASES["some that were left out"]
    layer = package(case.spec, case.text).Attention(HIDDEN, HEADS, 2, D, learn=("near", "calm", "warmth"))
    assert [x.tolist() for x in (layer.warmth, layer.calm)] == [[0.5] * 2, [2.0] * HEADS]
    assert not layer.near.any() and layer.near.shape == (HEADS, 4)


def test_learned_inputs_decode_and_calls_come_first(package: Callable[..., ModuleType]) -> None:
    layer, x = made(CASES["learned slopes"], package), torch.randn(B, T, HIDDEN)
    with torch.no_grad():
        cache, whole = layer.new_cache(B, T), layer(x)
        parts = [layer(part, cache=cache) for part in x.split([5, 3, 1], 1)]
        agree([torch.cat(parts, 1)], [whole])
        fixed = package("alibi", "").Attention(HIDDEN, HEADS, 2, D)
        assert fixed.slopes is None
        fixed.load_state_dict({name: w for name, w in layer.state_dict().items() if name != "slopes"})
        other = torch.rand(HEADS)
        agree([layer(x, slopes=other), fixed(x, slopes=layer.slopes)], [fixed(x, slopes=other), whole])


def test_inputs_that_cannot_be_learned_are_told(package: Callable[..., ModuleType]) -> None:
    text = "mask: [causal]\nscore: [expr: score * half + lift]\ninputs:\n"
    text += "  half: {axes: [head], grad: true, default: 1}\n  lift: {axes: [head, query], grad: true, default: 0}"
    for name, given, learn, told in (
        ("alibi", "", ("slope",), "names out of slopes, got 'slope'"),
        ("alibi", "", "slope", "names out of slopes, got 'slope'"),
        (
            "left_out_tables",
            CASES["some that were left out"].text,
            ("near", "x"),
            "names out of warmth, calm, near, got 'x'",
        ),
    ):
        with pytest.raises(ValueError, match=f"^learn: expected {told}$"):
            package(name, given).Attention(HIDDEN, HEADS, head_dim=D, learn=learn)
    # all modules have a method `half`, and `lift` has no value for a length: both are keywords of a call alone
    layer = package("taken", text).Attention(HIDDEN, HEADS, head_dim=D)
    agree(
        [layer(torch.ones(B, T, HIDDEN), half=torch.ones(HEADS)).detach()], [layer(torch.ones(B, T, HIDDEN)).detach()]
    )
    with pytest.raises(TypeError, match="unexpected keyword argument 'learn'"):
        package("taken", text).Attention(HIDDEN, HEADS, head_dim=D, learn=("half",))


def test_docstrings_name_what_can_be_learned(package: Callable[..., ModuleType]) -> None:
    told = (
        "learn: names out of slopes: those inputs are parameters that begin at their defaults; the others are constants"
    )
    assert told in package("alibi", "").Attention.__doc__
    assert "learn" not in package("causal", "").Attention.__doc__


@pytest.mark.parametrize("name", ["mistral", "log_decay"])
def test_a_compiled_layer_decodes_without_a_break(name: str, package: Callable[..., ModuleType]) -> None:
    layer, x, graphs = made(Case(name, made=WHOLE), package), torch.randn(B, 7, HIDDEN), []
    torch.compiler.reset()
    compiled = torch.compile(layer, backend=lambda graph, given: graphs.append(graph) or graph, fullgraph=True)
    # `with` a device, torch calls each function through one in Python, and some cannot be traced that way
    with torch.no_grad(), x.device:
        caches = [layer.new_cache(B, 8) for _ in range(2)]
        for part in x.split([4, 1, 1, 1], 1):
            agree([compiled(part, cache=caches[0])], [layer(part, cache=caches[1])])
    # one for the prompt, one for all tokens after it
    assert len(graphs) == 2


@torch.no_grad()
def test_layers_of_two_packages_compile_in_one_process(
    package: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_twice = retracing.trace_twice(monkeypatch)
    text = "mask: [causal]\nscore: [log_decay]\nexports: [decode, module]"
    for name in ("faded_1", "faded_2"):
        layer, x = package(name, text).Attention(HIDDEN, HEADS, 2, head_dim=D), torch.randn(B, T, HIDDEN)
        with torch.autocast(x.device.type, torch.float16):
            trace_twice(layer, x, cache=layer.new_cache(B, T))


def test_weights_are_dropped_in_training_alone(package: Callable[..., ModuleType]) -> None:
    layer, x = made(Case("gpt2_dropout", made={"dropout_p": 0.5}), package), torch.randn(B, T, HIDDEN)
    expected = layer.eval()(x)
    agree([layer(x).detach()], [expected.detach()])
    layer.train()
    outs = [layer(x) for seed in (1, 1, 2) if torch.manual_seed(seed)]
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    assert not torch.equal(outs[0], expected)


def test_every_variant_has_a_module_or_a_reason(tmp_path: Path) -> None:
    refused = set()
    for name in resources.variants():
        path = tmp_path / f"{name}.yaml"
        path.write_text(asked(name))
        try:
            loaded = spec.load(path, terms=resources.terms_for(path))
        except SpecError:
            refused.add(name)
            continue
        compile(render._text("module/module.py.jinja", render._values(loaded)), name, "exec")
    assert refused == {"flash1", "flash2_strided_k", "deepseek_mla_absorbed"}


def test_names_of_modules_are_known() -> None:
    public = {name for name in dir(torch.nn.Module()) if not name.startswith("_")} - {"T_destination"}
    # other libraries add methods of their own to all modules
    torchs = {
        name for name in public if getattr(getattr(torch.nn.Module, name, None), "__module__", "torch")[:5] == "torch"
    }
    assert "forward" in torchs and torchs <= exports._OF_MODULES


def test_the_page_is_right(package: Callable[..., ModuleType]) -> None:
    for name in ("gpt_oss", "alibi"):
        package(name, "")
    text = (Path(__file__).parents[2] / "docs" / "module.md").read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```python\n(.*?)^```\n", text, re.MULTILINE | re.DOTALL))
    names: dict[str, Any] = {}
    exec(blocks.replace("from generated.", f"from {PACKAGES}."), names)
    assert names["cache"].seq_lens.tolist() == [13, 13]
    assert "slopes" in names["learning"].state_dict() and names["learning"].slopes.grad.all()
