"""Sequences so long that products of positions exceed 2**31: kernels against formulas written by hand in float64.

In the interpreter the last few queries see all keys; on a GPU there are as many queries as keys, and gradients.
"""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path

import pytest
import torch
import unformatted
from devices import GPU

pytestmark = pytest.mark.slow

KEYS, ROWS, SIZE = 50_000, 3, 16
SPECS = {
    "far_squares": 'score: [expr: "score - (q - k) ** 2 * 0.000001"]',
    "far_hash": 'mask: [expr: "(q * 7919 + k * 104729) % 3 > 0"]',
}


@pytest.mark.parametrize("name", SPECS)
def test_products_of_distant_positions(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text(f"name: {name}\n{SPECS[name]}\n")
    unformatted.write(path, tmp_path / name)
    monkeypatch.syspath_prepend(tmp_path)
    attention = importlib.import_module(name).attention
    if not GPU:
        # the interpreter can take tiles of any size
        runtime = importlib.import_module(f"{name}.runtime")
        monkeypatch.setattr(runtime, "launch_tuned", lambda cache, tables, kernel, start, *more: start(16, 512, 4, 1))
    try:
        check(name, attention)
    finally:
        sys.modules.pop(name)


def check(name: str, attention: object) -> None:
    device = "cuda" if GPU else "cpu"
    make = torch.Generator(device).manual_seed(0)
    queries = KEYS if GPU else ROWS
    q, k, v = (
        torch.randn(1, n, 1, SIZE, generator=make, device=device, requires_grad=True) for n in (queries, KEYS, KEYS)
    )
    out, lse = attention(q, k, v, return_lse=True)  # type: ignore[operator]
    # only a few rows have a gradient, so that the formula written by hand needs no others
    upstream = torch.zeros_like(out)
    rows = torch.tensor([0, queries // 2, queries - 1], device=device)
    upstream[:, rows] = torch.randn(1, ROWS, 1, SIZE, generator=make, device=device)
    found = [out[:, rows], lse[..., rows]]
    if GPU:
        dq, dk, dv = torch.autograd.grad(out, (q, k, v), upstream)
        found += [dq[:, rows], dk, dv]

    far, near, value = (x.detach()[0, :, 0].double().requires_grad_() for x in (q[:, rows], k, v))
    at = (rows + KEYS - queries)[:, None]
    key = torch.arange(KEYS, device=device)
    score = far @ near.T / math.sqrt(SIZE)
    if name == "far_squares":
        score = score - (at - key).double() ** 2 * 0.000001
    else:
        score = score.masked_fill((at * 7919 + key * 104729) % 3 == 0, -math.inf)
    wanted_out = score.softmax(-1) @ value
    wanted = [wanted_out, score.logsumexp(-1)]
    if GPU:
        wanted += torch.autograd.grad(wanted_out, (far, near, value), upstream[0, rows, 0].double())
    for x, y in zip(found, wanted, strict=True):
        scale = float(y.detach().abs().max())
        torch.testing.assert_close(x.detach().double().reshape(y.shape), y, rtol=1e-4, atol=1e-4 * scale)
