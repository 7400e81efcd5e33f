"""Largest logits and sums of weights, against a softmax written by hand, and calls that do without them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import unformatted

from attnforge.language import spec
from attnforge.render import render as renderer
from attnforge.source import resources

pytestmark = pytest.mark.slow

Render = Callable[..., ModuleType]


def files(folder: Path, name: str, text: str) -> dict[str, str]:
    """The files of a spec's package."""
    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\n{text}\n")
    return unformatted.files(spec.load(path, terms=resources.terms_for(path)))


@pytest.fixture
def render(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Render:
    """Renders a spec that asks for statistics, and imports its package."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def package(name: str, text: str) -> ModuleType:
        name = f"measured_{name}"  # not the name of any other test's package
        (tmp_path / name).mkdir()
        for file, content in files(tmp_path, name, f"exports: [statistics]\n{text}").items():
            (tmp_path / name / file).write_text(content)
        return importlib.import_module(name)

    return package


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def measured(module: ModuleType, *qkv: torch.Tensor, **given: Any) -> list[torch.Tensor]:
    """The largest logits and sums of a call, checked against those of the reference."""
    _, *found = module.attention(*qkv, **given, return_max_logit=True, return_key_sums=True)
    _, *wanted = module.reference(*qkv, **given, return_max_logit=True, return_key_sums=True)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5)
    assert not any(x.requires_grad for x in (*found, *wanted))
    return list(found)


def by_hand(score: torch.Tensor, keep: torch.Tensor, sinks: torch.Tensor | None = None) -> list[torch.Tensor]:
    """The same results, from scores (B, H, Tq, Tk)."""
    score = torch.where(keep, score, -math.inf)
    beside = torch.full_like(score[..., :1], -math.inf)
    if sinks is not None:
        beside[:] = sinks[:, None, None]
    weights = torch.cat((score, beside), -1).softmax(-1)[..., :-1].nan_to_num(0)
    return [score.amax((0, 2, 3)), weights.sum(2)]


def test_they_are_those_of_a_softmax(render: Render) -> None:
    module = render("capped", "mask: [causal, sliding_window: {size: 20}]\nscore: [softcap: {cap: 2.0}]\nsink: true")
    q, k, v, sinks = drawn(2, 37, 4, 16), drawn(2, 40, 2, 16), drawn(2, 40, 2, 8), drawn(4)
    found = measured(module, q, k, v, sinks=sinks, scale=-0.5)
    plain = -0.5 * torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, 2))
    apart = (torch.arange(37)[:, None] + 3) - torch.arange(40)
    wanted = by_hand(2 * torch.tanh(plain / 2), (apart >= 0) & (apart < 20), sinks)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5)


def test_dropped_weights_count_whole_and_padding_for_nothing(render: Render) -> None:
    module = render("dropping", "mask: [causal]\ndropout: true")
    q, k, v = drawn(3, 5, 2, 16), drawn(3, 40, 1, 16), drawn(3, 40, 1, 16)
    starts, ends = (torch.tensor(x, dtype=torch.int32) for x in ([3, 0, 7], [38, 40, 7]))
    largest, sums = measured(module, q, k, v, dropout_p=0.5, seed=3, k_starts=starts, k_lens=ends)
    score = torch.einsum("bihd,bjhd->bhij", q, k.expand(-1, -1, 2, -1)) / 4
    place = torch.arange(40) - starts[:, None, None]
    position = torch.arange(5)[:, None] + (ends - starts)[:, None, None] - 5
    keep = (place >= 0) & (torch.arange(40) < ends[:, None, None]) & (place <= position)
    torch.testing.assert_close([largest, sums], by_hand(score, keep[:, None]), rtol=1e-4, atol=2e-5)
    assert not sums[2].any()


def test_what_is_behind_the_last_key_is_no_logit(render: Render) -> None:
    module = render("everything", "")
    q, k = -torch.ones(1, 5, 2, 16), torch.ones(1, 9, 2, 16)
    largest, _ = measured(module, q, k, k)
    torch.testing.assert_close(largest, torch.full((2,), -4.0))


def test_of_what_nobody_sees(render: Render) -> None:
    module = render("unseen", "mask: [expr: 'k < q - 100']")
    q, k = drawn(1, 5, 2, 16), drawn(1, 9, 2, 16)
    for queries, keys in ((q, k), (q, k[:, :0]), (q[:0], k[:0])):
        largest, sums = measured(module, queries, keys, keys)
        assert (largest == -math.inf).all() and sums.shape == (len(queries), 2, keys.shape[1]) and not sums.any()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cut", "layout: packed\nmask: [causal]\nrope: {layout: half}"),
        ("decaying", "layout: packed\nheads: equal\nmask: [causal]\nscore: [log_decay]"),
    ],
    ids=["rotated", "decaying"],
)
def test_packed_sequences_do_not_meet(render: Render, name: str, text: str) -> None:
    module = render(f"packed_{name}", text)
    lengths, cuts = (5, 0, 34), torch.tensor([0, 5, 5, 39], dtype=torch.int32)
    q, k = drawn(41, 2, 16), drawn(41, 2, 16) + 1  # the last two rows belong to no sequence
    angles, decays = drawn(40, 8), -drawn(41, 2).abs()
    found = []
    for spoilt in (False, True):
        if spoilt:
            q[:5] = math.nan
        given = {"cos": angles.cos(), "sin": angles.sin()} if name == "cut" else {"log_decay": decays}
        given |= {"cu_seqlens": cuts, "max_seqlen": max(lengths)}
        if spoilt:
            _, sums = module.attention(q, k, k, **given, return_key_sums=True)
        else:
            _, sums = measured(module, q, k, k, **given)
        found.append(sums)
    # the weights of each query add up to 1
    torch.testing.assert_close(found[0][:, 5:39].sum(1), torch.full((2,), 34.0))
    assert torch.equal(found[0][:, 5:], found[1][:, 5:]) and not found[0][:, 39:].any()


def test_each_comes_where_it_is_asked_for_and_leaves_gradients_alone(render: Render) -> None:
    module = render("asked", "mask: [causal]")
    q, k = drawn(1, 20, 2, 16).requires_grad_(), drawn(1, 20, 2, 16)
    out, lse, largest, sums = module.attention(q, k, k, return_lse=True, return_max_logit=True, return_key_sums=True)
    assert torch.equal(module.attention(q, k, k, return_max_logit=True)[1], largest)
    assert torch.equal(module.attention(q, k, k, return_key_sums=True)[1], sums)
    assert torch.equal(module.attention(q, k, k, return_lse=True, return_key_sums=True)[1], lse)
    (there,) = torch.autograd.grad(out.sum(), q)
    (alone,) = torch.autograd.grad(module.attention(q, k, k).sum(), q)
    assert torch.equal(there, alone)


def test_a_compiler_sees_them(render: Render) -> None:
    module = render("compiled", "mask: [causal]\nrope: {layout: half}")
    q, k, angles = drawn(1, 5, 2, 16).requires_grad_(), drawn(1, 9, 2, 16), drawn(9, 8)

    given = {"cos": angles.cos(), "sin": angles.sin(), "return_max_logit": True, "return_key_sums": True}

    def call(q: torch.Tensor) -> Any:
        return module.attention(q, k, k, **given)

    found = torch.compile(call, fullgraph=True, backend="aot_eager")(q)
    assert [x.requires_grad for x in found] == [True, False, False]
    torch.testing.assert_close(found, call(q))


def test_calls_without_them_run_what_they_ran(tmp_path: Path) -> None:
    text = "mask: [causal]\nscore: [alibi]"
    plain, measuring = files(tmp_path, "plain", text), files(tmp_path, "plain", f"exports: [statistics]\n{text}")
    assert measuring.keys() - plain.keys() == {"statistics.py"}
    for name in ("kernels.py", "launch.py", "hopper.py", "runtime.py", "arguments.py"):
        one, other = (x[name].partition('"""')[2] for x in (plain, measuring))
        assert one == other, name


def test_modules_for_other_libraries_have_neither(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text("name: some\nmask: [causal]\nexports: [statistics]\n")
    text = renderer.export(spec.load(path, terms=resources.terms_for(path)), "flex")
    assert "return_lse" in text and "return_max_logit" not in text
