"""A new variant as a user makes one: a spec, a package, its suite, a model that learns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import attnforge

pytestmark = pytest.mark.slow

SPEC = """\
name: tempered
description: ALiBi in a sliding window with a learned temperature for each head.
mask:
  - causal
  - sliding_window: {size: 12}
score:
  - expr: "score * temp"
  - alibi
inputs:
  temp: {axes: [head], grad: true}
"""
HASTENED = "import runpy; from attnforge.gpu import interpreter; interpreter.hasten(); runpy.run_path('train.py')"
TRAIN = '''
"""Two layers learn to repeat the token of three places before."""
import torch
from torch import nn

from generated.tempered import attention

torch.manual_seed(0)
H, D, T, WORDS = 2, 16, 12, 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(H * D), nn.Linear(H * D, 3 * H * D), nn.Linear(H * D, H * D)
        self.temp = nn.Parameter(torch.ones(H))
        self.slopes = nn.Parameter(torch.full((H,), 0.1))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, H, D).unbind(2)
        return x + self.out(attention(q, k, v, temp=self.temp, slopes=self.slopes).flatten(2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, H * D), nn.Embedding(T, H * D)
        self.layers = nn.Sequential(Layer(), Layer())
        self.head = nn.Linear(H * D, WORDS)

    def forward(self, x):
        return self.head(self.layers(self.words(x) + self.places(torch.arange(T))))


model = Model()
optimizer = torch.optim.Adam(model.parameters(), 2e-2)
losses = []
for _ in range(15):
    x = torch.randint(WORDS, (3, T))
    loss = nn.functional.cross_entropy(model(x)[:, 3:].flatten(0, 1), x[:, :-3].flatten())
    optimizer.zero_grad()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model.layers[0].temp.grad.abs().min() > 0 and model.layers[1].slopes.grad.abs().min() > 0
    optimizer.step()
    losses.append(loss.item())
print(losses[0], losses[-1])
assert losses[-1] < 0.8 * losses[0], losses
'''


def test_a_users_variant_from_spec_to_training(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(Path(attnforge.__file__).parents[1]), "TRITON_INTERPRET": "1"}

    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    run("-m", "attnforge", "new", "tempered")
    (tmp_path / "specs" / "tempered.yaml").write_text(SPEC)
    assert run("-m", "attnforge", "check", "specs/tempered.yaml") == "specs/tempered.yaml: good\n"
    run("-m", "attnforge", "render", "specs/tempered.yaml")
    assert " passed" in run("-m", "attnforge", "test", "specs/tempered.yaml", "--cpu")
    (tmp_path / "train.py").write_text(TRAIN)
    run("-c", HASTENED)
