"""Tests that need a large GPU: more elements than 32 bits count, more tiles than a grid's short axes hold."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
GIB = 40
enough = torch.cuda.is_available() and torch.cuda.get_device_properties(0).total_memory > GIB << 30
pytestmark = pytest.mark.skipif(not enough, reason=f"needs a GPU with {GIB} GiB")
COUNT, T, D, HQ, HKV = 4100, 128, 128, 32, 2


def results(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, packed: bool) -> dict[str, torch.Tensor]:
    """Out, LSE and gradients of the last of several sequences."""
    attention = importlib.import_module(f"generated.{name}").attention
    inputs = [x.detach() for x in (q, k, v)]
    more: dict[str, Any] = {}
    if packed:
        inputs = [x.flatten(0, 1) for x in inputs]
        more = {"cu_seqlens": torch.arange(len(q) + 1, device="cuda", dtype=torch.int32) * T, "max_seqlen": T}
    learned = [x.requires_grad_() for x in inputs]
    out, lse = attention(*learned, **more, return_lse=True)
    dq, dk, dv = torch.autograd.grad(out, learned, torch.ones_like(out))
    rows = slice(-T, None) if packed else slice(-1, None)
    found = {"out": out[rows], "dq": dq[rows], "dk": dk[rows], "dv": dv[rows]}
    found["lse"] = lse[..., rows] if packed else lse[rows]
    return {key: x.detach().clone() for key, x in found.items()}


@pytest.mark.parametrize("name", ["causal", "packed_causal"])
def test_more_elements_than_32_bits_count(name: str) -> None:
    make = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(COUNT, T, h, D, generator=make, device="cuda", dtype=torch.bfloat16) for h in (HQ, HKV, HKV))
    assert q.numel() > 2**31
    packed = name.startswith("packed")
    alone = results(name, q[-1:], k[-1:], v[-1:], packed)
    for key, x in results(name, q, k, v, packed).items():
        torch.testing.assert_close(x, alone[key], msg=key)


@pytest.mark.parametrize("name", ["causal", "packed_causal"])
def test_memory_beside_outputs_is_a_number_for_each_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The LSE in the forward pass; one more vector of rows in the backward pass."""
    monkeypatch.setenv("ATTNFORGE_TARGET", "portable")
    importlib.import_module(f"generated.{name}.runtime").LaunchCache.known.clear()
    attention = importlib.import_module(f"generated.{name}").attention
    q, k, v = (torch.randn(1, 8192, 16, 64, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    more: dict[str, Any] = {}
    rows = 16 * 8192 * 4
    if name.startswith("packed"):
        q, k, v = (x.detach()[0].requires_grad_() for x in (q, k, v))
        more = {"cu_seqlens": torch.tensor([0, 8192], device="cuda", dtype=torch.int32), "max_seqlen": 8192}
        rows += 16 * 4 * 4  # room for each sequence to begin at a multiple of 4
    attention(q, k, v, **more).sum().backward()  # allocates what is made only once
    q.grad = k.grad = v.grad = None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = attention(q, k, v, **more)
    upstream = torch.ones_like(out)
    forward = torch.cuda.max_memory_allocated() - before - out.nbytes - upstream.nbytes
    gradients = torch.autograd.grad(out, (q, k, v), upstream)
    both = torch.cuda.max_memory_allocated() - before - out.nbytes - upstream.nbytes - sum(x.nbytes for x in gradients)
    assert rows <= forward < rows + 512 and 2 * rows <= both < 2 * rows + 1024  # memory comes in units of 512 bytes


LONG = 65_537 * 128  # rows in more tiles than a grid's second axis holds


def gradients(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: Any) -> tuple[torch.Tensor, ...]:
    attention = importlib.import_module(f"generated.{name}").attention
    learned = [x.detach().requires_grad_() for x in (q, k, v)]
    out = attention(*learned, **more)
    return out.detach(), *torch.autograd.grad(out, learned, torch.ones_like(out))


@pytest.mark.parametrize("side", ["queries", "keys"])
def test_more_tiles_than_a_short_axis_holds(side: str) -> None:
    """Many queries of few keys agree with a call of the last ones, and few queries of many keys with a formula."""
    make = torch.Generator("cuda").manual_seed(0)
    rows, others = (torch.randn(1, n, 1, 16, generator=make, device="cuda", dtype=torch.bfloat16) for n in (LONG, 64))
    place = slice(-4096, None)
    if side == "queries":
        out, dq, _, _ = gradients("full", rows, others, others)
        few, dq_few, _, _ = gradients("full", rows[:, place], others, others)
        torch.testing.assert_close(out[:, place], few)
        torch.testing.assert_close(dq[:, place], dq_few)
        return
    out, _, _, dv = gradients("full", others, rows, rows)
    score = (others[0, :, 0].float() @ rows[0, :, 0].float().T) / 4
    weight = score.softmax(-1)
    torch.testing.assert_close(out[0, :, 0].float(), weight @ rows[0, :, 0].float(), rtol=2e-2, atol=2e-5)
    torch.testing.assert_close(dv[0, :, 0].float(), weight.T @ torch.ones(64, 16, device="cuda"), rtol=2e-2, atol=1e-7)


def test_documents_of_more_parts_than_a_short_axis_holds() -> None:
    make = torch.Generator("cuda").manual_seed(0)
    # whole documents: the last one is compared with a call of its own, and masks keep ranges for each 32 rows
    length, document = 65_538 * 32, 64
    assert length % document == 0 and length // 32 > 65_535
    q, k, v = (torch.randn(1, length, 1, 16, generator=make, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    segments = (torch.arange(length, device="cuda") // document).int()[None]
    angles = torch.arange(length, device="cuda")[:, None] * 10000.0 ** (-torch.arange(8, device="cuda") / 8)
    more = {"q_segments": segments, "k_segments": segments, "cos": angles.cos(), "sin": angles.sin()}
    place = slice(-document, None)
    last = {name: x[:, place] if name.endswith("segments") else x[place] for name, x in more.items()}
    alone = gradients("llama3_documents", q[:, place], k[:, place], v[:, place], **last)
    for found, wanted in zip(gradients("llama3_documents", q, k, v, **more), alone, strict=True):
        torch.testing.assert_close(found[:, place], wanted)
