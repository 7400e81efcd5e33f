"""The order in which keys are summed: it follows positions in a sequence, whichever part of it a call holds."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
import unformatted

pytestmark = pytest.mark.slow

TEXTS = {
    "plain": "mask: [causal]",
    "window": "mask: [causal, sliding_window: {size: 40}]\nscore: [softcap: {cap: 2.0}]",
    "table": "mask: [causal, sliding_window: {size: 40}]\nscore: [relative_bias: {bidirectional: false}]",
}
Render = Callable[[str, str], ModuleType]


@pytest.fixture
def render(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Render:
    """Renders a spec and imports its package."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def package(name: str, text: str) -> ModuleType:
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"name: {name}\n{text}\n")
        unformatted.write(path, tmp_path / name)
        # each row by itself, as on a GPU: the products of numpy depend on the processor
        monkeypatch.setattr("numpy.matmul", importlib.import_module(f"{name}.checks").row_by_row)
        return importlib.import_module(name)

    return package


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def given(name: str) -> dict[str, torch.Tensor]:
    """The keywords of a spec."""
    return {"rel_bias": drawn(1, 32)} if name == "table" else {}


@pytest.mark.parametrize("width", [16, 144])  # wide values have separate loops for tiles that need a mask
@pytest.mark.parametrize("name", TEXTS)
def test_chunks_and_prefixes_have_the_bits_of_the_whole(render: Render, name: str, width: int) -> None:
    module = render(f"bits_{name}_{width}", TEXTS[name])
    q, k, v = drawn(1, 100, 1, 16), drawn(1, 100, 1, 16), drawn(1, 100, 1, width)
    whole, lse = module.attention(q, k, v, return_lse=True, **given(name))
    for first in (99, 41):
        out, part = module.attention(q[:, first:], k, v, return_lse=True, **given(name))
        assert torch.equal(out, whole[:, first:]) and torch.equal(part, lse[..., first:])
    out = module.attention(q[:, :70], k[:, :70], v[:, :70], **given(name))
    assert torch.equal(out, whole[:, :70])


@pytest.mark.parametrize("name", TEXTS)
def test_packed_sequences_are_summed_up_as_dense_ones(render: Render, name: str) -> None:
    dense, packed = (render(f"{layout}_{name}", f"layout: {layout}\n{TEXTS[name]}") for layout in ("dense", "packed"))
    lengths = (40, 5, 70)
    q, k, v = (drawn(sum(lengths), 1, width) for width in (16, 16, 8))
    cuts = torch.tensor([0, *lengths]).cumsum(0).int()
    out, lse = packed.attention(q, k, v, cu_seqlens=cuts, max_seqlen=max(lengths), return_lse=True, **given(name))
    for first, past in itertools.pairwise(cuts):
        rows = slice(first, past)
        one, own = dense.attention(*(x[None, rows] for x in (q, k, v)), return_lse=True, **given(name))
        assert torch.equal(out[rows], one[0]) and torch.equal(lse[:, rows], own[0])
