"""Packages under `torch.compile`, `torch.export`, checkpointing, autocast and torch.func, and what they refuse."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import devices  # where kernels run is settled before triton is imported
import pytest
import torch
import torch.distributed.tensor
from random_specs import RandomSpec, suite, write
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

pytestmark = pytest.mark.slow

SPECS = {
    "causal": "mask: [causal]",
    "packed": "layout: packed\nrope: {layout: half}\nmask: [causal]",
    "learned": "rope: {layout: half}\nmask: [causal]\nscore: [log_decay]\nsink: true",
    "dropout": "mask: [sliding_window: {size: runtime}]\nscore: [{expr: 'score + w[k]'}]\ndropout: true\n"
    "inputs: {w: {axes: [token, head], grad: true}}",
}
DEVICE = "cuda" if devices.GPU else "cpu"
Tensors = dict[str, torch.Tensor]
Call = dict[str, Any]
LOOKED_UP: list[Any] = []  # operators that PyTorch holds without counting references: releasing one would crash


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    """The suites of small specs."""
    folder = tmp_path_factory.mktemp("tracing")
    for name, text in SPECS.items():
        write(RandomSpec(f"tracing_{name}", f"name: tracing_{name}\n{text}\n"), folder)
    return {name: suite(folder, f"tracing_{name}") for name in SPECS}


@pytest.fixture
def causal(suites: dict[str, ModuleType]) -> Callable[..., torch.Tensor]:
    """The attention of the causal spec, with a compiler that is reset after earlier tests."""
    torch.compiler.reset()
    attention: Callable[..., torch.Tensor] = suites["causal"].checks.attention
    return attention


def launches(module: ModuleType) -> ModuleType:
    """The module of a suite's package that holds its operators."""
    return importlib.import_module(f"{module.__package__}.launch")


def make(module: ModuleType, length: int, layout: str = "contiguous") -> Call:
    """The arguments of a call, in which all float tensors except tables require gradients."""
    case = dataclasses.replace(module.SMALL, q_lens=(length,) * 2, k_lens=(length,) * 2, layout=layout)
    call: Call = module.make_inputs(case)
    return {name: x.requires_grad_() if name in module.VARIANT.gradients else x for name, x in call.items()}


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def padded(module: ModuleType) -> Call:
    """A call of six rows whose entries are padded on either side."""
    return make(module, 6) | {"k_starts": numbers(2, 0), "k_lens": numbers(6, 4), "q_start": numbers(-2, 0)}


def gradients(function: Callable[..., Any], call: Call) -> Tensors:
    """The result of a call, and the gradients of its learned inputs."""
    learned = {name: x for name, x in call.items() if isinstance(x, torch.Tensor) and x.requires_grad}
    out = function(**call)
    found = torch.autograd.grad(out.float().square().sum(), list(learned.values()))
    return {"out": out.detach(), **dict(zip(learned, found, strict=True))}


def operands(length: int = 9, *, learned: bool = True) -> list[torch.Tensor]:
    """q, k and v of the causal spec."""
    torch.manual_seed(0)
    return [torch.randn(1, length, heads, 16, requires_grad=learned) for heads in (2, 1, 1)]


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *(("causal", layout) for layout in ("contiguous", "transposed", "expanded")),
        ("learned", "transposed"),
        ("learned", "padded"),
        ("packed", "contiguous"),
        ("dropout", "expanded"),
    ],
)
def test_operators_pass_all_checks_of_pytorch(
    name: str, layout: str, suites: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, calls = suites[name], []
    operator = launches(module).runtime.Operator
    run = operator.__call__

    def noted(self: Any, *args: Any) -> Any:
        calls.append((self.traced, args))
        found = run(self, *args)
        assert not any(x.isnan().any() for x in found), "memory that nobody wrote"
        return found

    call = padded(module) if layout == "padded" else make(module, 6, layout)
    monkeypatch.setattr(operator, "__call__", noted)
    torch.use_deterministic_algorithms(True)
    try:
        gradients(module.checks.attention, call)
    finally:
        torch.use_deterministic_algorithms(False)
    monkeypatch.undo()
    *before, backward = calls
    assert len(before) == (2 if layout == "padded" else 1)
    for called in before:
        assert len(torch.library.opcheck(*called)) == 4
    # it has no derivative to check
    op, args = backward
    assert len(torch.library.opcheck(op, [x.detach() if isinstance(x, torch.Tensor) else x for x in args])) == 4


@pytest.mark.parametrize(("name", "dynamic"), [("causal", None), *((name, True) for name in SPECS)])
def test_changing_lengths_compile_at_most_twice(name: str, dynamic: bool | None, suites: dict[str, ModuleType]) -> None:
    torch.compiler.reset()
    attention = suites[name].checks.attention
    counted = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attention, fullgraph=True, dynamic=dynamic, backend=counted)
    for length in (6, 19, 10):
        call = make(suites[name], length)
        torch.testing.assert_close(gradients(compiled, call), gradients(attention, call))
    assert counted.frame_count <= 2


@pytest.mark.parametrize(
    ("name", "wrong", "told"), [("window", 0, "at least 1, got 0"), ("dropout_p", 1.5, "a share below 1, got 1.5")]
)
def test_a_wrong_number_is_told_where_numbers_are_traced(
    name: str, wrong: float, told: str, suites: dict[str, ModuleType]
) -> None:
    torch.compiler.reset()
    call = make(suites["dropout"], 6)
    compiled = torch.compile(suites["dropout"].checks.attention, fullgraph=True, dynamic=True, backend="eager")
    compiled(**call)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=f"{name}: expected {told}"):
        compiled(**call | {name: wrong})


class Layer(torch.nn.Module):
    """Attention as a module, since only modules can be exported."""

    def __init__(self, attention: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, *given: torch.Tensor, **more: Any) -> torch.Tensor:
        """The result of attention."""
        return self.attention(*given, **more)


def exported(attention: Callable[..., torch.Tensor]) -> torch.export.ExportedProgram:
    """An exported program for any length."""
    tokens, given = torch.export.Dim("tokens", min=2, max=512), tuple(operands(learned=False))
    return torch.export.export(Layer(attention), given, dynamic_shapes={"given": ({1: tokens},) * 3})


def test_export_round_trip(causal: Callable[..., torch.Tensor], tmp_path: Path) -> None:
    torch.export.save(exported(causal), tmp_path / "causal.pt2")
    loaded = torch.export.load(tmp_path / "causal.pt2").run_decompositions()
    called = [str(node.target) for node in loaded.graph.nodes if "attnforge" in str(node.target)]
    assert called == ["attnforge.tracing__causal_launch_attend.default"]
    longer = operands(23)
    assert torch.equal(loaded.module()(*longer), causal(*longer))


@pytest.mark.parametrize(("name", "entries"), [*((name, False) for name in SPECS), ("causal", True), ("learned", True)])
def test_saved_programs_have_gradients(name: str, entries: bool, suites: dict[str, ModuleType], tmp_path: Path) -> None:
    attention, call = suites[name].checks.attention, padded(suites[name]) if entries else make(suites[name], 6)
    torch.export.save(torch.export.export(Layer(attention), (), kwargs=call), tmp_path / "saved.pt2")
    loaded = torch.export.load(tmp_path / "saved.pt2").module()
    torch.testing.assert_close(gradients(loaded, call), gradients(attention, call))


# a process of its own: loading before a package is imported, and then the results of the programs
ELSEWHERE = """
import sys

import torch

load = {"exported": lambda file: torch.export.load(file).module(), "aoti": torch._inductor.aoti_load_package}
refused = {}
for name, file in zip(load, sys.argv[1:]):
    try:
        load[name](file)
    except RuntimeError as error:
        refused[name] = str(error)
import tracing_causal.launch

given = torch.load("operands.pt")
torch.save((refused, [load[name](file)(*given) for name, file in zip(load, sys.argv[1:])]), "found.pt")
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="needs a compiler of C++")
def test_programs_run_where_the_package_is_imported(causal: Callable[..., torch.Tensor], tmp_path: Path) -> None:
    program, given = exported(causal), operands(23, learned=False)
    files = [str(tmp_path / "exported.pt2"), str(tmp_path / "aoti.pt2")]
    torch.export.save(program, files[0])
    quickly = {"aot_inductor.compile_wrapper_opt_level": "O0", "aot_inductor.precompile_headers": False}  # used once
    torch._inductor.aoti_compile_and_package(program, package_path=files[1], inductor_configs=quickly)
    torch.save(given, tmp_path / "operands.pt")
    folder = Path(str(sys.modules["tracing_causal"].__file__)).parents[1]
    command, env = [sys.executable, "-c", ELSEWHERE, *files], os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    refused, found = torch.load(tmp_path / "found.pt")
    assert "failed to resolve torch.ops.attnforge.tracing__causal_launch_attend.default" in done.stderr
    assert refused["aoti"] == "Could not find schema for attnforge::tracing__causal_launch_attend."
    for out in found:
        torch.testing.assert_close(out, causal(*given))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_checkpoints_make_the_same_gradients(name: str, reentrant: bool, suites: dict[str, ModuleType]) -> None:
    call, attention = make(suites[name], 9), suites[name].checks.attention
    wanted = gradients(attention, call)
    # the reentrant kind takes gradients by `backward` only
    checkpoint(lambda q: attention(**call | {"q": q}), call["q"], use_reentrant=reentrant).square().sum().backward()
    learned = [name for name in wanted if name != "out"]
    assert set(learned) >= {"q", "k", "v"}
    torch.testing.assert_close({name: call[name].grad for name in learned}, {name: wanted[name] for name in learned})


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("saved", [False, True])
def test_checkpointing_saves_what_a_policy_names(
    saved: bool, compiled: bool, causal: Callable[..., torch.Tensor], suites: dict[str, ModuleType]
) -> None:
    launching = launches(suites["causal"])
    # as PyTorch does when an earlier module of this name is released: what it then looks up is not what it passes on
    LOOKED_UP.append(vars(torch.ops.attnforge).pop("tracing__causal_launch_attend", None))
    runs = []

    def policy(context: Any, op: Any, *args: Any, **keywords: Any) -> CheckpointPolicy:
        kept = saved and str(op) == "attnforge.tracing__causal_launch_attend.default"
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    def block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return causal(q.sin(), k, v)

    contexts = partial(create_selective_checkpoint_contexts, policy)

    def step(*given: torch.Tensor) -> Any:
        return checkpoint(block, *given, use_reentrant=False, context_fn=contexts)

    run = torch.compile(step, fullgraph=True, backend="aot_eager") if compiled else step
    given = operands()
    with pytest.MonkeyPatch.context() as patch:
        launch = launching.runtime.launch
        patch.setattr(
            launching.runtime,
            "launch",
            lambda cache, kernel, *rest, **keywords: (runs.append(kernel), launch(cache, kernel, *rest, **keywords)),
        )
        found = torch.autograd.grad(run(*given).sum(), given)
    assert runs.count(launching.kernels.forward) == (1 if saved else 2)
    torch.testing.assert_close(found, torch.autograd.grad(block(*given).sum(), given))


def test_the_policy_of_the_docs_keeps_attention(causal: Callable[..., torch.Tensor]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "compile.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```python\n(from functools.*?)^```$", page, re.MULTILINE | re.DOTALL)
    text = text.replace("import generated.causal.launch", "").replace("generated_causal", "tracing__causal")
    x = torch.randn(1, 9, 1, 16, requires_grad=True)
    names: Call = {"block": lambda x: causal(x, x, x), "x": x}
    exec(compile(text, "compile.md", "exec"), names)
    operator = torch.ops.attnforge.tracing__causal_launch_attend.default
    assert names["policy"](None, operator) == CheckpointPolicy.MUST_SAVE
    torch.testing.assert_close(torch.autograd.grad(names["out"].sum(), x)[0], gradient_of(causal, x))


def gradient_of(attention: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The gradient of the sum of self-attention."""
    return torch.autograd.grad(attention(x, x, x).sum(), x)[0]


def test_compiled_calls_obey_autocast(causal: Callable[..., torch.Tensor]) -> None:
    compiled = torch.compile(causal, fullgraph=True, backend="aot_eager")
    given = operands()
    with torch.autocast("cpu", torch.float16):
        out, plain = compiled(*given), causal(*given)
    assert out.dtype == torch.float16
    found = torch.autograd.grad(out.float().sum(), given)
    assert all(x.dtype == torch.float32 for x in found)
    torch.testing.assert_close((out, *found), (plain, *torch.autograd.grad(plain.float().sum(), given)))


def test_functional_call_takes_other_weights(causal: Callable[..., torch.Tensor]) -> None:
    class Layer(torch.nn.Linear):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return causal(super().forward(q), k, v)

    layer, given = Layer(16, 16, bias=False), tuple(operands())
    weight = torch.randn(16, 16, requires_grad=True)
    out = torch.func.functional_call(layer, {"weight": weight}, given)
    assert torch.equal(out, causal(given[0] @ weight.T, *given[1:]))

    def loss(weights: Tensors) -> torch.Tensor:
        total: torch.Tensor = torch.func.functional_call(layer, weights, given).sum()
        return total

    found = torch.func.grad(loss)({"weight": weight.detach()})["weight"]
    torch.testing.assert_close(found, torch.autograd.grad(out.sum(), weight)[0])


NO_VMAP = "attention cannot be mapped by vmap: put the mapped axis into the batch, or loop over it"


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_vmap_is_refused(compiled: bool, learned: bool, causal: Callable[..., torch.Tensor]) -> None:
    mapped: Callable[..., Any] = torch.vmap(causal)
    if compiled:
        mapped = torch.compile(mapped, fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match=NO_VMAP):
        mapped(*(x[None].expand(3, *x.shape) for x in operands(learned=learned)))


def test_vmap_over_gradients_is_refused(causal: Callable[..., torch.Tensor]) -> None:
    q, *others = operands()
    out = causal(q, *others)
    with pytest.raises(RuntimeError, match=NO_VMAP):
        torch.autograd.grad(out, q, torch.ones(3, *out.shape), is_grads_batched=True)
    with pytest.raises(RuntimeError, match=NO_VMAP):
        torch.func.jacrev(lambda q: causal(q, *others))(q.detach())


def test_forward_mode_is_refused(causal: Callable[..., torch.Tensor]) -> None:
    q, *others = operands(learned=False)
    with pytest.raises(RuntimeError, match="attention has no forward-mode derivative, only gradients"):
        torch.func.jvp(lambda q: causal(q, *others), (q,), (q,))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_is_not_supported(causal: Callable[..., torch.Tensor]) -> None:
    """A trace fails, and leaves no program that would be right for the sizes of its example alone."""
    given = tuple(operands(learned=False))
    with pytest.raises(AttributeError, match="bit_length"):
        torch.jit.trace(causal, given)
    with pytest.raises(torch.jit.frontend.NotSupportedError, match="keyword-only"):
        torch.jit.script(causal)
    assert causal(*given).isfinite().all()


@pytest.mark.parametrize("compiled", [False, True])
def test_second_derivatives_are_refused(compiled: bool, causal: Callable[..., torch.Tensor]) -> None:
    q, *others = operands()
    function = torch.compile(causal, fullgraph=True, backend="aot_eager") if compiled else causal
    (first,) = torch.autograd.grad(function(q, *others).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward" if compiled else "attention has no second derivative"):
        torch.autograd.grad(first.sum(), q)


def test_eager_calls_stay_away_from_the_dispatcher(
    causal: Callable[..., torch.Tensor], suites: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dispatched(*_: Any) -> None:
        raise AssertionError("the long way")

    launch = launches(suites["causal"])
    for operator in (launch._attend, launch._differentiate):
        monkeypatch.setattr(operator, "traced", dispatched)
    given = operands()
    torch.autograd.grad(causal(*given).sum(), given)
    with pytest.raises(AssertionError, match="the long way"):
        torch.compile(causal, backend="eager")(*given)


def test_a_package_that_is_imported_again_has_its_operators_anew(suites: dict[str, ModuleType]) -> None:
    call = make(suites["causal"], 9)
    before = suites["causal"].checks.attention(**call)
    importlib.reload(launches(suites["causal"]))
    with torch.no_grad():
        after = torch.compile(suites["causal"].checks.attention, fullgraph=True, backend="aot_eager")(**call)
    torch.testing.assert_close(after, before.detach())


class Scaled(torch.nn.Module):
    """Attention of queries times a parameter."""

    def __init__(self, attention: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.attention = attention
        self.weight = torch.nn.Parameter(torch.ones(1, device=DEVICE))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The result of attention."""
        return self.attention(q * self.weight, k, v)


def test_shards_in_mixed_precision_reach_attention_in_half(causal: Callable[..., torch.Tensor], tmp_path: Path) -> None:
    layer, operands = Scaled(causal), [torch.randn(2, 9, 2, 16, device=DEVICE) for _ in range(3)]
    (wanted,) = torch.autograd.grad(layer(*operands).sum(), layer.weight)
    kind = "nccl" if DEVICE == "cuda" else "gloo"
    torch.distributed.init_process_group(kind, rank=0, world_size=1, init_method=f"file://{tmp_path / 'store'}")
    try:
        half = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32)
        fully_shard(layer, mesh=torch.distributed.init_device_mesh(DEVICE, (1,)), mp_policy=half)
        out = layer(*operands)
        out.float().sum().backward()
        slope = layer.weight.grad
        assert out.dtype == torch.float16
        assert isinstance(slope, torch.distributed.tensor.DTensor) and slope.dtype == torch.float32
        torch.testing.assert_close(slope.full_tensor(), wanted, rtol=2e-2, atol=2e-2)
    finally:
        torch.distributed.destroy_process_group()
