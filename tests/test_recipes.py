"""Each recipe of docs/recipes.md gives the results of plain PyTorch, forward and backward, in Triton's interpreter."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import stand_ins
import torch
import unformatted
from devices import INTERPRETER

from attnforge.gpu import interpreter
from attnforge.render import emit

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "recipes.md"
B, T, H, D = 2, 12, 2, 16
Formula = Callable[..., torch.Tensor]


def products(q: torch.Tensor, k: torch.Tensor, scale: float = D**-0.5) -> torch.Tensor:
    return torch.einsum("bihd,bjhd->bhij", q, k) * scale


def hidden(score: torch.Tensor) -> torch.Tensor:
    return torch.ones(score.shape[-2:], dtype=torch.bool).triu(1)


def mixed(weights: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.einsum("bhij,bjhe->bihe", weights, v)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    score = products(q, k)
    return mixed(score.masked_fill(hidden(score), -math.inf).softmax(-1), v)


def each_head(x: torch.Tensor) -> torch.Tensor:
    return x[:, None, None]


def sigmoid_attention(q: Any, k: Any, v: Any, lift: Any) -> torch.Tensor:
    weights = (products(q, k) + each_head(lift)).sigmoid()
    return mixed(weights.masked_fill(hidden(weights), 0), v)


def relu_attention(q: Any, k: Any, v: Any) -> torch.Tensor:
    weights = products(q, k).relu() ** 2
    return mixed(weights.masked_fill(hidden(weights), 0), v)


def joined(q: Any, k: Any, v: Any, more_k: Any, more_v: Any) -> torch.Tensor:
    return mixed(products(q, torch.cat((k, more_k), 1)).softmax(-1), torch.cat((v, more_v), 1))


def gated_weights(q: Any, k: Any, v: Any, reach: Any, fade: Any) -> torch.Tensor:
    score = products(q, k)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    gate = (each_head(reach) - each_head(fade) * distance).sigmoid()
    return mixed(score.masked_fill(hidden(score), -math.inf).softmax(-1) * gate, v)


def off_by_one(q: Any, k: Any, v: Any) -> torch.Tensor:
    score = products(q, k)
    grown = score.exp().masked_fill(hidden(score), 0)
    return mixed(grown / (1 + grown.sum(-1, keepdim=True)), v)


def output_gate(q: Any, k: Any, v: Any, gate: Any) -> torch.Tensor:
    return causal(q, k, v) / (1 + torch.exp(-gate))


def normed(q: Any, k: Any, v: Any, q_weight: Any, k_weight: Any) -> torch.Tensor:
    q, k = (x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w for x, w in ((q, q_weight), (k, k_weight)))
    return causal(q, k, v)


def cosine_attention(q: Any, k: Any, v: Any, warmth: Any) -> torch.Tensor:
    q, k = (x / x.square().sum(-1, keepdim=True).sqrt() for x in (q, k))
    return mixed((products(q, k, 1.0) * each_head(warmth).exp()).softmax(-1), v)


def turned(x: torch.Tensor, angles: torch.Tensor, grown: float = 1.0) -> torch.Tensor:
    """x [B, T, H, D] with pairs from its two halves rotated by angles [B, T, D / 2]."""
    pairs = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.full_like(angles, grown), angles)[:, :, None]
    return torch.cat((pairs.real, pairs.imag), -1)


def mrope(q: Any, k: Any, v: Any, places: Any, sections: Any) -> torch.Tensor:
    angles = torch.empty(B, T, D // 2)
    for pair in range(D // 2):
        axis = next(a for a in range(len(sections)) if pair < sum(sections[: a + 1]))
        angles[..., pair] = places[axis] * 10000.0 ** (-2 * pair / D)
    return causal(turned(q, angles), turned(k, angles), v)


def yarn(q: Any, k: Any, v: Any, factor: Any, trained: Any) -> torch.Tensor:
    angles, base = torch.empty(1, T, D // 2), 10000.0
    low = max(math.floor(D * math.log(trained / (32 * 2 * math.pi)) / (2 * math.log(base))), 0)
    high = min(math.ceil(D * math.log(trained / (1 * 2 * math.pi)) / (2 * math.log(base))), D - 1)
    for pair in range(D // 2):
        kept = 1 - min(max((pair - low) / (high - low), 0), 1)
        speed = base ** (-2 * pair / D)
        angles[..., pair] = torch.arange(T) * (speed / factor * (1 - kept) + speed * kept)
    grown = 0.1 * math.log(factor) + 1
    return causal(turned(q, angles, grown), turned(k, angles, grown), v)


def image_attention(q: Any, k: Any, v: Any, near: Any) -> torch.Tensor:
    return mixed((products(q, k) + offsets(near)).softmax(-1), v)


def offsets(near: torch.Tensor) -> torch.Tensor:
    """The entries [H, T, T] of a table of distances in rows and columns, for tokens in rows of 4."""
    rows = ([near[:, i // 4 - j // 4 + 3, i % 4 - j % 4 + 3] for j in range(T)] for i in range(T))
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def mixed_rope(q: Any, k: Any, v: Any, places: Any, speeds: Any) -> torch.Tensor:
    angles = sum(places[axis][:, :, None, None] * speeds[axis] for axis in range(len(speeds)))
    pairs = [torch.complex(*x.chunk(2, -1)) * torch.exp(1j * angles) for x in (q, k)]
    q, k = (torch.cat((x.real, x.imag), -1) for x in pairs)
    return mixed(products(q, k).softmax(-1), v)


def deberta(q: Any, k: Any, v: Any, place_keys: Any, place_queries: Any) -> torch.Tensor:
    far = (torch.arange(T)[:, None] - torch.arange(T)).clamp(-4, 4)
    score = torch.einsum("bihd,bjhd->bhij", q, k)
    score = score + torch.einsum("bihd,ijhd->bhij", q, place_keys[(far + 4).clamp(max=7)])
    score = score + torch.einsum("bjhd,ijhd->bhij", k, place_queries[(4 - far).clamp(max=7)])
    return mixed((score / math.sqrt(3 * D)).softmax(-1), v)


def meta_tokens(q: Any, k: Any, v: Any, meta_k: Any, meta_v: Any) -> torch.Tensor:
    distance = torch.arange(T)[:, None] - torch.arange(T)
    near = products(q, k).masked_fill((distance < 0) | (distance >= 5), -math.inf)
    score = torch.cat((torch.einsum("bihd,mhd->bhim", q, meta_k) * D**-0.5, near), -1)
    weights = score.softmax(-1)
    return torch.einsum("bhim,mhd->bihd", weights[..., :3], meta_v) + mixed(weights[..., 3:], v)


def scalable_softmax(q: Any, k: Any, v: Any, rate: Any) -> torch.Tensor:
    score = products(q, k) * each_head(rate) * torch.arange(1, T + 1).log()[:, None]
    return mixed(score.masked_fill(hidden(score), -math.inf).softmax(-1), v)


def clean_and_noised(q: Any, k: Any, v: Any, block: int) -> torch.Tensor:
    half = T // 2
    shown = torch.zeros(T, T, dtype=torch.bool)
    for first in range(0, half, block):
        own = slice(first, first + block)
        shown[own, : first + block] = True
        shown[half:][own, :first] = True
        shown[half:, half:][own, own] = True
    return mixed(products(q, k).masked_fill(~shown, -math.inf).softmax(-1), v)


def video(q: Any, k: Any, v: Any) -> torch.Tensor:
    frame, row, column = torch.stack(torch.meshgrid(*map(torch.arange, (3, 2, 2)), indexing="ij")).view(3, T)
    age = frame[:, None] - frame
    beside = (row[:, None] - row).abs() + (column[:, None] - column).abs() <= 1
    shown = (age >= 0) & (age <= 1) & beside
    return mixed(products(q, k).masked_fill(~shown, -math.inf).softmax(-1), v)


def triangle_attention(q: Any, k: Any, v: Any, pair_bias: Any, known: Any) -> torch.Tensor:
    outs = []
    for row in range(q.shape[1]):
        score = (products(q[:, row], k[:, row]) + pair_bias).masked_fill(~known[:, None, None], -math.inf)
        outs.append(mixed(score.softmax(-1), v[:, row]))
    return torch.stack(outs, 1)


def windowed(q: Any, k: Any, v: Any, part: Any, near: Any) -> torch.Tensor:
    outs = []
    for entry in range(len(q)):
        own = part[entry % len(part)]
        one = slice(entry, entry + 1)
        score = products(q[one], k[one]).masked_fill(own[:, None] != own, -math.inf)
        outs.append(mixed((score + offsets(near)).softmax(-1), v[one]))
    return torch.cat(outs)


def nsa(q: Any, k: Any, v: Any, gates: Any) -> torch.Tensor:
    outs = torch.zeros(3, B, T, H, D)
    for b, h, i in itertools.product(range(B), range(H), range(T)):
        own = i // 4
        score = k[b, :, h] @ q[b, i, h] * D**-0.5
        means_k, means_v = (x[b, :, h].view(-1, 4, D).mean(1) for x in (k, v))
        ended = (i + 1) // 4
        past = means_k @ q[b, i, h]
        rows = [own]
        if own:
            rows.append(int(past[:own].argmax()))
            outs[0, b, i, h] = (past[:ended] * D**-0.5).softmax(0) @ means_v[:ended]
        elif ended:
            outs[0, b, i, h] = means_v[0]
        keys = [j for j in range(i + 1) if j // 4 in rows]
        outs[1, b, i, h] = score[keys].softmax(0) @ v[b, keys, h]
        outs[2, b, i, h] = score[max(i - 2, 0) : i + 1].softmax(0) @ v[b, max(i - 2, 0) : i + 1, h]
    return (outs / (1 + torch.exp(-gates))).sum(0)


# arguments of each recipe besides q, k and v: the shapes of its tensors, and what is not a learned tensor
TAKES: dict[Formula, dict[str, Any]] = {
    sigmoid_attention: {"lift": (H,)},
    relu_attention: {},
    joined: {"more_k": (B, 7, H, D), "more_v": (B, 7, H, D)},
    gated_weights: {"reach": (H,), "fade": (H,)},
    off_by_one: {},
    output_gate: {"gate": (B, T, H, D)},
    normed: {"q_weight": (D,), "k_weight": (D,)},
    cosine_attention: {"warmth": (H,)},
    mrope: {"places": "places", "sections": [2, 3, 3]},
    yarn: {"factor": 4.0, "trained": 4096},
    image_attention: {"near": (H, 7, 7)},
    mixed_rope: {"places": "places", "speeds": (3, H, D // 2)},
    deberta: {"place_keys": (8, H, D), "place_queries": (8, H, D)},
    meta_tokens: {"meta_k": (3, H, D), "meta_v": (3, H, D)},
    scalable_softmax: {"rate": (H,)},
    clean_and_noised: {"block": 2},
    video: {},
    triangle_attention: {
        **dict.fromkeys("qkv", (B, 3, T, H, D)),
        "pair_bias": (B, H, T, T),
        "known": torch.arange(T) < torch.tensor([[9], [T]]),
    },
    windowed: {
        **dict.fromkeys("qkv", (6, T, H, D)),
        "part": torch.tensor([[0] * T, [0, 1] * 6, [0, 0, 1] * 4], dtype=torch.int32),
        "near": (H, 7, 7),
    },
    nsa: {"gates": (3, B, T, H, 1)},
}


# -- recipes for other libraries: the distance of each from plain PyTorch ----------------------------------------------


def apart(found: list[torch.Tensor], expected: list[torch.Tensor]) -> dict[str, float]:
    """The distances of tensors from the expected ones, relative to their size."""
    pairs = enumerate(zip(found, expected, strict=True))
    return {str(i): float((a - b).abs().max() / b.abs().max()) for i, (a, b) in pairs}


def passes(call: Formula, *learned: torch.Tensor) -> list[torch.Tensor]:
    """The result of a call, and the gradients of its arguments."""
    given = [x.detach().clone().requires_grad_() for x in learned]
    out = call(*given)
    torch.manual_seed(1)
    return [out.detach(), *torch.autograd.grad(out, given, torch.randn(out.shape))]


def with_documents(names: dict[str, Any]) -> dict[str, float]:
    layers = [SimpleNamespace(attention=SimpleNamespace(inner_attention=None))]
    (layer,) = names["with_documents"](SimpleNamespace(layers=layers)).layers
    inner = layer.attention.inner_attention.build()
    # the end of a document falls between the halves of the batch
    cuts = torch.tensor([0, 5, 6, T], dtype=torch.int32)
    masks = importlib.import_module("torchtitan.models.common.attention").VarlenMetadata(cuts, cuts, 6, 6)

    def titan(q: Any, k: Any, v: Any) -> Any:
        return inner(q, k, v, attention_masks=masks, scale=0.3, enable_gqa=True)

    def plain(q: Any, k: Any, v: Any) -> Any:
        parts = [[x[first:past, None].transpose(0, 1) for x in (q, k, v)] for first, past in itertools.pairwise(cuts)]
        outs = [causal(q * 0.3 * D**0.5, *(x.repeat_interleave(2, 2) for x in (k, v))) for q, k, v in parts]
        return torch.cat(outs, 1)[0]

    def batch(*states: Any) -> Any:
        return titan(*(x.unflatten(0, (2, -1)) for x in states)).flatten(0, 1)

    torch.manual_seed(0)
    states = torch.randn(T, 2 * H, D), torch.randn(T, H, D), torch.randn(T, H, D)
    expected = passes(plain, *states)
    return apart([*passes(titan, *states), *passes(batch, *states)], [*expected, *expected])


def fading(q: Any, k: Any, v: Any, window: int) -> torch.Tensor:
    """The attention of a sequence's last tokens q [T, H, D] to all its tokens."""
    distance = torch.arange(len(k) - len(q), len(k))[:, None] - torch.arange(len(k))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    score = products(q[None], k[None]) - 0.3 * torch.log1p(distance.clamp(min=0))
    return mixed(score.masked_fill((distance < 0) | (distance >= window), -math.inf).softmax(-1), v[None])[0]


def caches(pages: int, page: int) -> dict[str, torch.Tensor]:
    """A layer's cache as an engine lays it out: (pages, heads, slots, keys and values side by side)."""
    lost = math.nan
    return {
        "heads first": torch.full((pages, H, page, 2 * D), lost),
        "places first": torch.full((pages, page, H, 2 * D), lost).transpose(1, 2),
        "pages of two layers in turns": torch.full((pages, 2, page, H, 2 * D), lost)[:, 1].transpose(1, 2),
    }


def serve_pages(names: dict[str, Any]) -> dict[str, float]:
    """The distances of the results with each layout of the cache."""
    return {
        f"{layout} {i}": distance
        for layout, cache in caches(6, 4).items()
        for i, distance in serve_from(cache, names).items()
    }


@torch.no_grad()
def serve_from(cache: torch.Tensor, names: dict[str, Any]) -> dict[str, float]:
    """The distances of results for two sequences: prompts, then a token and a chunk, then a chunk and a token."""
    library = importlib.import_module("vllm.v1.attention.backend")
    backend = importlib.import_module("vllm.v1.attention.backends.registry").AttentionBackendEnum.CUSTOM.get_class()
    assert backend is names["PagesBackend"]
    layer = backend.get_impl_cls()(2 * H, D, D**-0.5, H, None, 6)
    builder = backend.get_builder_cls()(None, ["layer"], None, "cpu")
    # layers leave this to the backend
    assert backend.forward_includes_kv_cache_update
    pages = torch.tensor([[3, 1, 0], [5, 2, 4]], dtype=torch.int32)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, T, heads, D) for heads in (2 * H, H, H))
    found, expected, lengths = [], [], [0, 0]
    for new in ([7, 2], [1, 5], [3, 1]):
        rows = [range(first, first + count) for first, count in zip(lengths, new, strict=True)]
        lengths = [r.stop for r in rows]
        slots = [int(pages[b, i // 4]) * 4 + i % 4 for b, r in enumerate(rows) for i in r]
        batch = library.CommonAttentionMetadata(
            query_start_loc=torch.tensor([0, new[0], sum(new)], dtype=torch.int32),
            query_start_loc_cpu=torch.tensor([0, new[0], sum(new)], dtype=torch.int32),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            num_reqs=len(new),
            num_actual_tokens=sum(new),
            max_query_len=max(new),
            max_seq_len=max(lengths),
            block_table_tensor=pages,
            slot_mapping=torch.tensor(slots),
        )
        # a batch has room for more tokens than it holds
        states = [
            torch.cat([*(x[b, list(r)] for b, r in enumerate(rows)), torch.zeros_like(x[0, :2])]) for x in (q, k, v)
        ]
        output = torch.zeros(sum(new) + 2, 2 * H, D)
        layer.forward(None, *states, cache, builder.build(0, batch), output)
        found.append(output[: sum(new)])
        expected.append(
            torch.cat([fading(q[b, list(r)], k[b, : r.stop], v[b, : r.stop], 6) for b, r in enumerate(rows)])
        )
    measuring = layer.forward(None, *states, cache, None, torch.ones(3, 2 * H, D))
    assert not measuring.any()
    return apart([*found, torch.cat(found)], [*expected, torch.cat(expected)])


def see_near_patches(names: dict[str, Any]) -> dict[str, float]:
    torch.manual_seed(0)
    library = importlib.import_module("timm.layers")
    more = {"qkv_bias": True, "qk_norm": True, "gated": True, "norm_layer": torch.nn.LayerNorm}
    model = torch.nn.Sequential(library.Attention(H * D, H, **more)).eval()
    place = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"), -1).view(-1, 2)
    shown = torch.ones(17, 17, dtype=torch.bool)
    shown[1:, 1:] = (place[:, None] - place).abs().amax(-1) <= 1
    x = torch.randn(B, 17, H * D)
    expected = passes(lambda x: model[0](x, attn_mask=shown), x)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    swapped = names["see_near_patches"](model)
    assert all(torch.equal(weight, weights[name]) for name, weight in swapped.state_dict().items())
    # a bias shared by all keys changes no attention weight: its gradient is noise
    learned = [weight for name, weight in swapped.named_parameters() if name != "0.k_norm.bias"]
    found = [
        torch.autograd.grad(call.square().sum(), learned)
        for call in (swapped(x), library.Attention.forward(model[0], x, shown))
    ]
    return apart([*passes(swapped, x), *found[0]], [*expected, *found[1]])


def near_pixels(width: int, height: int) -> torch.Tensor:
    """The mask added to scores (B, T, T): 0 for pixels at most two rows and columns away, else -inf."""
    place = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), -1).view(-1, 2)
    shown = (place[:, None] - place).abs().amax(-1) <= 2
    return torch.zeros(shown.shape).masked_fill(~shown, -math.inf).expand(B, -1, -1)


def see_near_pixels(names: dict[str, Any]) -> dict[str, float]:
    """An image layer beside one that attends to a text; inputs are an image, and a square one as a row of tokens."""
    torch.manual_seed(0)
    library = importlib.import_module("diffusers.models.attention_processor")
    more = {"bias": True, "qk_norm": "layer_norm", "norm_num_groups": 2}
    more |= {"residual_connection": True, "rescale_output_factor": 2.0}
    layer = library.Attention(H * D, heads=H, dim_head=D, **more)
    text = library.Attention(H * D, 8, heads=H, dim_head=D)
    before = text.processor
    image, tokens = torch.randn(B, H * D, 3, 5), torch.randn(B, 16, H * D)
    masked = [(image, near_pixels(5, 3)), (tokens, near_pixels(4, 4))]
    # a bias shared by all keys changes no attention weight: its gradient is noise
    learned = [weight for name, weight in layer.named_parameters() if name != "norm_k.bias"]

    def found(*, plain: bool) -> list[torch.Tensor]:
        out = []
        for x, mask in masked:
            call = partial(layer, attention_mask=mask) if plain else layer
            out += passes(call, x)
            out += torch.autograd.grad(call(x).square().sum(), learned)
        return out

    expected = found(plain=True)
    names["see_near_pixels"](torch.nn.ModuleList([layer, text]))
    assert text.processor is before
    return apart(found(plain=False), expected)


@torch.no_grad()
def sparse_step(names: dict[str, Any]) -> dict[str, float]:
    """Single tokens that attend to lists of keys, of several lengths, in a paged cache."""
    torch.manual_seed(0)
    k, v, q = torch.randn(6, 4, H, D), torch.randn(6, 4, H, D), torch.randn(4, 2 * H, D)
    counts = torch.tensor([5, 1, 9, 24], dtype=torch.int32)
    rows = torch.stack([torch.randperm(24) for _ in counts]).int()
    out = names["sparse_step"](q, k, v, rows, counts)
    expected = []
    for b, count in enumerate(counts.tolist()):
        listed = [x.reshape(24, H, D)[rows[b, :count].long()].repeat_interleave(2, 1)[None] for x in (k, v)]
        expected.append(mixed(products(q[b, None, None], listed[0]).softmax(-1), listed[1])[0, 0])
    return apart(list(out), expected)


DOORS: dict[str, Callable[[dict[str, Any]], dict[str, float]]] = {
    "with_documents": with_documents,
    "PagesBackend": serve_pages,
    "see_near_patches": see_near_patches,
    "see_near_pixels": see_near_pixels,
    "sparse_step": sparse_step,
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```\n", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def measured(found: Formula, formula: Formula) -> dict[str, float]:
    """The distances of a recipe's output and gradients from those of its formula, relative to their size."""
    torch.manual_seed(0)
    plain: dict[str, Any] = {name: torch.randn(B, T, H, D) for name in "qkv"}
    for name, taken in TAKES[formula].items():
        plain[name] = torch.randn(taken) if isinstance(taken, tuple) else taken
        if isinstance(taken, str):
            plain[name] = torch.randint(0, 9, (3, B, T))
    learned = [name for name, x in plain.items() if isinstance(x, torch.Tensor) and x.is_floating_point()]
    results = []
    for function in (found, formula):
        given = {name: x.clone().requires_grad_() if name in learned else x for name, x in plain.items()}
        out = function(**given)
        torch.manual_seed(1)
        grads = torch.autograd.grad(out, [given[name] for name in learned], torch.randn(out.shape))
        results.append([out.detach(), *grads])
    return {
        name: float((a - b).abs().max() / b.abs().max()) for name, a, b in zip(["out", *learned], *results, strict=True)
    }


def test_recipes_are_their_formulas(tmp_path: Path) -> None:
    """Runs specs and blocks in order, as a reader would, in a folder of its own; one process runs them all."""
    (tmp_path / "specs").mkdir()
    for text in blocks("yaml"):
        name = re.match(r"# (\S+)\n", text)
        assert name, "the first line says which file this is"
        (tmp_path / name[1]).write_text(text, encoding="utf-8")
    made = [unformatted.package(path)[1] for path in sorted((tmp_path / "specs").glob("*.yaml"))]
    emit.write(made, tmp_path / "generated")
    path = os.pathsep.join(map(str, (ROOT / "generator", ROOT / "tests", tmp_path)))
    env = os.environ | {"PYTHONPATH": path, INTERPRETER: "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, __file__], cwd=tmp_path, env=env, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    distances: dict[str, dict[str, float]] = json.loads(done.stdout)
    assert set(distances) == {*(formula.__name__ for formula in TAKES), *DOORS}
    assert all(len(found) >= 4 for found in distances.values()), distances
    wrong = {name: found for name, found in distances.items() if not all(apart < 2e-5 for apart in found.values())}
    assert not wrong


def test_every_recipe_is_held_against_a_formula() -> None:
    """A function or class that nothing else on the page mentions is a recipe."""
    text = "\n".join(blocks("python"))
    defined = set(re.findall(r"(?m)^(?:def|class) (\w+)", text))
    helpers = {name for name in defined if len(re.findall(rf"\b{name}\b", text)) > 1}
    assert defined - helpers == {formula.__name__ for formula in TAKES} | set(DOORS)


def serve() -> None:
    """Runs the page's blocks and prints how far each recipe is from its formula."""
    interpreter.hasten()
    stand_ins.install()
    # dataclasses look up the module that defines them
    module = sys.modules["recipes"] = ModuleType("recipes")
    names = vars(module)
    for text in blocks("python"):
        exec(compile(text, str(PAGE), "exec"), names)
    found = {formula.__name__: measured(names[formula.__name__], formula) for formula in TAKES}
    print(json.dumps(found | {name: check(names) for name, check in DOORS.items()}))


if __name__ == "__main__":
    serve()
