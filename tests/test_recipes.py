"""Each recipe of docs/recipes.md gives what plain PyTorch gives, forward and backward, in Triton's interpreter."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import INTERPRETER

from attnforge.gpu import interpreter

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
    """x [B, T, H, D] with pairs of halves turned by angles [B, T, D / 2]."""
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
    score = products(q, k)
    bias = torch.stack(
        [torch.stack([near[:, i // 4 - j // 4 + 3, i % 4 - j % 4 + 3] for j in range(T)], -1) for i in range(T)], -2
    )
    return mixed((score + bias).softmax(-1), v)


# what each recipe takes beside q, k and v: the shapes of its tensors, and what is no tensor that learns
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
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```\n", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def measured(found: Formula, formula: Formula) -> dict[str, float]:
    """How far output and gradients of a recipe are from those of its formula, beside their own size."""
    torch.manual_seed(0)
    plain: dict[str, Any] = {name: torch.randn(B, T, H, D) for name in "qkv"}
    for name, taken in TAKES[formula].items():
        plain[name] = torch.randn(taken) if isinstance(taken, tuple) else taken
        if taken == "places":
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


@pytest.fixture(scope="module")
def distances(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """Of each recipe, as a reader runs them: specs and blocks in order, in a folder of its own."""
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "specs").mkdir()
    for text in blocks("yaml"):
        name = re.match(r"# (\S+)\n", text)
        assert name, "the first line says which file this is"
        (folder / name[1]).write_text(text, encoding="utf-8")
    path = os.pathsep.join(map(str, (ROOT / "generator", ROOT / "tests", folder)))
    env = os.environ | {"PYTHONPATH": path, INTERPRETER: "1", "CUDA_VISIBLE_DEVICES": ""}
    specs = sorted(str(p) for p in (folder / "specs").glob("*.yaml"))
    subprocess.run([sys.executable, "-m", "attnforge", "render", *specs], cwd=folder, env=env, check=True)
    done = subprocess.run([sys.executable, __file__], cwd=folder, env=env, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", [formula.__name__ for formula in TAKES])
def test_a_recipe_is_its_formula(distances: dict[str, dict[str, float]], name: str) -> None:
    assert len(distances[name]) >= 4
    assert all(apart < 2e-5 for apart in distances[name].values()), distances[name]


def test_every_recipe_is_held_against_a_formula() -> None:
    """A function that no other block of the page calls is a recipe."""
    text = "\n".join(blocks("python"))
    defined = set(re.findall(r"(?m)^def (\w+)", text))
    helpers = {name for name in defined if len(re.findall(rf"\b{name}\(", text)) > 1}
    assert defined - helpers == {formula.__name__ for formula in TAKES}


def serve() -> None:
    """Runs the page's blocks and prints how far each recipe is from its formula."""
    interpreter.hasten()
    names: dict[str, Any] = {}
    for text in blocks("python"):
        exec(compile(text, str(PAGE), "exec"), names)
    print(json.dumps({formula.__name__: measured(names[formula.__name__], formula) for formula in TAKES}))


if __name__ == "__main__":
    serve()
