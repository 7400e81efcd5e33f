"""Inputs whose entries several batch entries share, `batch // n` and `batch % n`, against a formula in float64."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

import devices  # noqa: F401  # where kernels run is settled before triton is imported
import pytest
import torch
from caches import Cache, Sequences, package

pytestmark = pytest.mark.slow

T, H, D = 20, 2, 16
TEXT = """
mask:
  - expr: "shown[q, k] and k < ends and block"
score:
  - expr: "score * exp(warm) + bias + by_key - by_query + near[min(abs(q - k), 3)] + turn + lift[q] * lift[k]"
inputs:
  n: {axes: [], dtype: int, min: 1}
  shown: {axes: [batch % 3, query, query], dtype: bool}
  ends: {axes: [batch // n, head], dtype: int}
  block: {axes: [batch // 2, query // 16, key // 16], dtype: bool}
  warm: {axes: [head, batch % n], grad: true}
  bias: {axes: [batch // n, head, query, key], grad: true}
  by_key: {axes: [batch % n, key, head], grad: true}
  by_query: {axes: [batch // 2, query], grad: true}
  near: {axes: [batch // n, head, 4], grad: true}
  lift: {axes: [token, batch % 2], grad: true}
  turn: {axes: [batch % n, key, query], grad: true}
"""
LEARNED = ("warm", "bias", "by_key", "by_query", "near", "lift", "turn")
Call = dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return package(tmp_path_factory.mktemp("shared_entries"), "shared_entries", TEXT, "decode, statistics")


def call(batch: int, n: int, keys: int = T) -> Call:
    """The arguments of a call, in which each axis that divides the batch has the size that it should have."""
    torch.manual_seed(batch * 10 + n)
    each, pairs = -(-batch // n), -(-batch // 2)
    blocks = torch.rand(pairs, 2, 2) > 0.3
    blocks[:, :, 0] = True
    shown = torch.rand(3, T, T) > 0.4
    floats = {
        "q": (batch, T, H, D),
        "k": (batch, keys, H, D),
        "v": (batch, keys, H, D),
        "warm": (H, n),
        "bias": (each, H, T, keys),
        "by_key": (n, keys, H),
        "by_query": (pairs, T),
        "near": (each, H, 4),
        "lift": (keys, 2),
        "turn": (n, keys, T),
    }
    given: Call = {"shown": shown | torch.eye(T, dtype=torch.bool), "block": blocks, "n": n}
    given["ends"] = torch.randint(T // 2, T + 1, (each, H), dtype=torch.int32)
    return given | {name: torch.randn(shape) / (1 if name in "qkv" else 2) for name, shape in floats.items()}


def formula(q: Any, k: Any, v: Any, n: int, **given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Out and LSE, one batch entry after the other."""
    place, distance = torch.arange(T), (torch.arange(T)[:, None] - torch.arange(T)).abs().clamp(max=3)
    outs, lses = [], []
    for b in range(len(q)):
        score = torch.einsum("ihd,jhd->hij", q[b], k[b]) * D**-0.5
        score = score * given["warm"][:, b % n, None, None].exp() + given["bias"][b // n]
        score = score + given["by_key"][b % n].T[:, None] - given["by_query"][b // 2][:, None]
        score = score + given["near"][b // n][:, distance] + given["turn"][b % n].T
        score = score + given["lift"][:, b % 2, None] * given["lift"][:, b % 2]
        keep = given["shown"][b % 3] & (place < given["ends"][b // n][:, None, None])
        keep = keep & given["block"][b // 2][place[:, None] // 16, place // 16]
        score = score.masked_fill(~keep, -torch.inf)
        lse = score.logsumexp(-1)
        weights = (score - lse.masked_fill(lse == -torch.inf, 0)[..., None]).exp()
        outs.append(torch.einsum("hij,jhd->ihd", weights, v[b]))
        lses.append(lse)
    return torch.stack(outs), torch.stack(lses)


def passes(function: Any, given: Call, learned: tuple[str, ...]) -> list[torch.Tensor]:
    """Out, LSE and the gradients of all learned inputs."""
    given = {name: x.clone().requires_grad_() if name in learned else x for name, x in given.items()}
    out, lse = function(**given)
    seen = lse.masked_fill(lse == -torch.inf, 0)
    torch.manual_seed(0)
    loss = (out * torch.randn(out.shape)).sum() + (seen * torch.randn(lse.shape)).sum()
    return [out, lse, *torch.autograd.grad(loss, [given[name] for name in learned])]


def widened(given: Call) -> Call:
    return {name: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for name, x in given.items()}


def close(found: list[torch.Tensor], wanted: list[torch.Tensor], names: tuple[str, ...]) -> None:
    for name, x, y in zip(("out", "lse", *names), found, wanted, strict=True):
        assert x.shape == y.shape, name
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-4, msg=lambda text, of=name: f"{of}: {text}")


@pytest.mark.parametrize(("batch", "n"), [(6, 2), (5, 2), (5, 4), (4, 3), (3, 1), (2, 7), (1, 2)])
def test_batch_entries_share_what_a_formula_says(batch: int, n: int, made: ModuleType) -> None:
    given, learned = call(batch, n), ("q", "k", "v", *LEARNED)
    wanted = passes(formula, widened(given), learned)
    for function in (made.attention, made.reference):
        close(passes(functools.partial(function, return_lse=True), given, learned), wanted, learned)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_an_axis_of_size_1_stands_for_any_size(n: int, made: ModuleType) -> None:
    batch, learned = 5, ("q", "k", "v", *LEARNED)
    given = call(batch, n)
    axes = {"shown": 0, "ends": 0, "block": 0, "warm": 1, "bias": 0, "by_key": 0, "by_query": 0, "near": 0, "turn": 0}
    narrow = given | {name: given[name].narrow(axis, 0, 1) for name, axis in axes.items()}
    narrow["lift"] = given["lift"][:, :1].repeat(1, 2)

    def broad(**x: Any) -> Any:
        sizes = {name: [-1] * x[name].dim() for name in axes}
        for name, axis in axes.items():
            sizes[name][axis] = given[name].shape[axis]
        return formula(**x | {name: x[name].expand(size) for name, size in sizes.items()})

    found = passes(functools.partial(made.attention, return_lse=True), narrow, learned)
    close(found, passes(broad, widened(narrow), learned), learned)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bias": torch.zeros(2, H, T, T)}, r"bias: expected shape \(3, 2, 20, 20\), got \(2, 2, 20, 20\)"),
        ({"bias": torch.zeros(5, H, T, T)}, r"bias: expected shape \(3, 2, 20, 20\), got \(5, 2, 20, 20\)"),
        ({"by_key": torch.zeros(5, T, H)}, r"by_key: expected shape \(2, 20, 2\), got \(5, 20, 2\)"),
        ({"n": 3}, r"ends: expected shape \(2, 2\), got \(3, 2\)"),
        ({"n": 0}, "n: expected at least 1, got 0"),
        ({"n": None}, "n: expected an int, got NoneType"),
        ({"n": 2.5}, "n: expected an int, got float"),
    ],
)
def test_a_size_is_the_quotient_rounded_up_or_the_divisor(changed: Call, message: str, made: ModuleType) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        made.attention(**call(5, 2) | changed)


def test_padded_entries_have_what_they_have_alone(made: ModuleType) -> None:
    given = call(5, 2)
    lengths = torch.tensor([20, 7, 13, 1, 16], dtype=torch.int32)
    out = made.attention(**given, k_lens=lengths, q_start=0)
    behind = torch.arange(T) >= lengths[:, None]
    alone = [formula(**widened(given | {"shown": given["shown"] & ~keys}))[0][b] for b, keys in enumerate(behind)]
    torch.testing.assert_close(out.double()[~behind], torch.stack(alone)[~behind], rtol=1e-4, atol=1e-4)


def test_decoding_reads_them_by_positions(tmp_path: Path) -> None:
    text = """
score:
  - expr: "score + bias + by_key * warm"
inputs:
  bias: {axes: [batch // beams, head, query, key]}
  by_key: {axes: [batch // beams, key]}
  warm: {axes: [batch % beams, head]}
  beams: {axes: [], dtype: int, min: 1}
"""
    decode = package(tmp_path, "shared_by_beams", text).decode
    s = Sequences([9, 12, 7, 20, 3], [1] * 5, heads=4, kv_heads=2)
    cache = Cache(s, page=8)
    cache.fill(decode.append)
    given = {"bias": torch.randn(3, 4, 1, 20), "by_key": torch.randn(3, 20), "warm": torch.randn(2, 4)}
    operands = (torch.stack(s.q), cache.k, cache.v, s.seq_lens)
    given |= cache.pages() | {"max_seqlen_k": 20}
    out, lse = decode.attend_with_cache(*operands, **given, beams=2, return_lse=True)
    for b, (q, k, v) in enumerate(zip(s.q, s.k, s.v, strict=True)):
        k, v = (x.double().repeat_interleave(2, 1) for x in (k, v))
        score = torch.einsum("ihd,jhd->hij", q.double(), k) / 4 + given["bias"][b // 2, :, :, : len(k)]
        score = score + given["by_key"][b // 2, : len(k)] * given["warm"][b % 2][:, None, None]
        wanted = torch.einsum("hij,jhd->ihd", score.softmax(-1), v)
        torch.testing.assert_close(out[b].double(), wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(lse[b].double(), score.logsumexp(-1), rtol=1e-4, atol=1e-4)
    # the next call with tensors of the same shapes
    with pytest.raises(ValueError, match=r"bias: expected shape \(2, 4, 1, 20\), got \(3, 4, 1, 20\)"):
        decode.attend_with_cache(*operands, **given, beams=3)
