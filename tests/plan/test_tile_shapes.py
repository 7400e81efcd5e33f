"""Tile shapes that the interpreter does not choose by itself: small and large, taller than wide and the reverse."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from devices import GPU

from attnforge.gpu import bench, calls
from attnforge.gpu.calls import Call, Sizes
from attnforge.language import spec
from attnforge.plan import plan
from attnforge.source import resources

pytestmark = pytest.mark.slow

GENERATED = Path(__file__).parents[2] / "generated"
SIZES = Sizes(2, 150, 200, 2, 1, 16, 16, "fp32")
# masks that depend on each call's tensors, blocks, several ranges, packed sequences, values of pairs
VARIANTS = ("llama3_documents", "transfusion", "block_sparse", "streaming_llm", "packed_rope", "pair_bias")
SHAPES = ((16, 64), (64, 16), (128, 32), (32, 128))  # all suites have square ones


@functools.cache
def package(name: str) -> ModuleType:
    return bench.module(f"shaped_{name}", GENERATED / name / "__init__.py")


@functools.cache
def call(name: str) -> Call:
    path = resources.variants()[name]
    planned = plan.build(spec.load(path, terms=resources.terms_for(path)))
    return calls.make(planned, SIZES.of(planned.spec), "cuda" if GPU else "cpu")


def results(function: str, name: str) -> tuple[torch.Tensor, ...]:
    made = call(name)
    out = getattr(package(name), function)(*made.operands, **made.keywords)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return (out.detach(), *torch.autograd.grad(out, made.wanted, upstream))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", VARIANTS)
def test_tiles_of_any_shape(name: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    package(name)
    runtime = importlib.import_module(f"shaped_{name}.runtime")
    monkeypatch.setattr(runtime, "launch_tuned", lambda cache, tables, name, start, *more: start(*shape, 4, 1))
    for found, right in zip(results("attention", name), results("reference", name), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
