"""CUDA graphs of both passes at the sizes of real models, for which Hopper GPUs use their own kernels."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import GPU
from torch._dynamo.utils import counters

sys.path.insert(0, str(Path(__file__).parents[2]))
pytestmark = pytest.mark.skipif(not GPU, reason="needs a GPU")
T, HQ, HKV, D = 4096, 8, 2, 128
NAMES = ["causal", "packed_causal", "gpt_oss", "forgetting_transformer"]
Tensors = tuple[torch.Tensor, ...]
Call = Callable[..., torch.Tensor]
# kernels for Hopper GPUs add up the gradients of queries in any order
close = partial(torch.testing.assert_close, rtol=1.6e-2, atol=1e-4)


def learned(name: str, seed: int) -> Tensors:
    """q, k, v and the other learned inputs of a call."""
    make = torch.Generator("cuda").manual_seed(seed)
    drawn: Callable[..., torch.Tensor] = partial(torch.randn, generator=make, device="cuda")
    lead = (2 * T,) if name == "packed_causal" else (2, T)
    found = [drawn(*lead, heads, D, dtype=torch.bfloat16) for heads in (HQ, HKV, HKV)]
    if name == "gpt_oss":
        found.append(drawn(HQ))
    if name == "forgetting_transformer":
        found.append(torch.nn.functional.logsigmoid(drawn(*lead, HQ) + 3))
    return tuple(x.requires_grad_() for x in found)


def attention_of(name: str) -> Call:
    """The attention of a package as a function of its learned inputs."""
    attention = importlib.import_module(f"generated.{name}").attention
    more: dict[str, Any] = {}
    if name == "packed_causal":
        more = {"cu_seqlens": torch.tensor([0, 1000, 2 * T], device="cuda", dtype=torch.int32), "max_seqlen": 2 * T}
    if name == "gpt_oss":
        angles = torch.arange(T, device="cuda")[:, None] * 10000.0 ** (-torch.arange(D // 2, device="cuda") * 2 / D)
        more = {"cos": angles.cos(), "sin": angles.sin()}
    extra = {"gpt_oss": ["sinks"], "forgetting_transformer": ["log_decay"]}.get(name, [])

    def call(*given: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = attention(*given[:3], **dict(zip(extra, given[3:], strict=True)), **more)
        return out

    return call


def passes(call: Call, given: Tensors, upstream: torch.Tensor) -> list[torch.Tensor]:
    """Copies of the output and of all gradients."""
    out = call(*given)
    return [x.detach().clone() for x in (out, *torch.autograd.grad(out, given, upstream))]


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_made_by_hand(name: str) -> None:
    call, given = attention_of(name), learned(name, 0)
    upstream = torch.randn_like(given[0])
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        for _ in range(3):
            passes(call, given, upstream)
    main.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = passes(call, given, upstream)
    for seed in (1, 2):
        others = learned(name, seed)
        for x, other in zip(given, others, strict=True):
            x.detach().copy_(other.detach())
        upstream.normal_()
        graph.replay()
        close(found, passes(call, others, upstream))


@pytest.mark.parametrize("name", NAMES)
def test_graphed_callables(name: str) -> None:
    call = attention_of(name)
    # tensors of the closure live as long as `call`: a graph does not keep them alive
    graphed = torch.cuda.make_graphed_callables(call, learned(name, 0))
    for seed in (1, 2):
        given = learned(name, seed)
        upstream = torch.randn_like(given[0])
        close(passes(graphed, given, upstream), passes(call, given, upstream))


@pytest.mark.parametrize("name", NAMES)
def test_graphs_of_the_compiler(name: str) -> None:
    torch.compiler.reset()
    counters.clear()
    call = attention_of(name)
    compiled = torch.compile(call, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):  # the first calls warm up and record
        torch.compiler.cudagraph_mark_step_begin()
        given = learned(name, seed)
        upstream = torch.randn_like(given[0])
        close(passes(compiled, given, upstream), passes(call, given, upstream))
    assert counters["inductor"]["cudagraph_skips"] == 0
