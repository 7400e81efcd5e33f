"""Earlier algorithms: the reference's results, forward only, and packages without any trace of a backward pass."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import unformatted
from random_specs import RandomSpec, generate, suite, write

from attnforge.explain import explain, summary
from attnforge.language import algorithm, spec
from attnforge.language.spec import Spec
from attnforge.plan import plan
from attnforge.source import resources

pytestmark = pytest.mark.slow

EARLIER = [one.name for one in algorithm.ALGORITHMS.values() if not one.backward]
# together they use everything that a spec can ask for
SPECS = {
    "all_dense": """
rope: {layout: half, dims: 8}
mask:
  - any: [{sliding_window: {size: runtime}}, {global_tokens: {count: 3}}]
  - segments
  - expr: "q != 5 and far[k] * 2 > tanh(few * 1.5)"
score: [alibi, {softcap: {cap: 9.0}}, bias, {expr: "score + near[h, min(abs(q - k), 3)] if flag else score"}]
sink: true
dropout: true
inputs: {near: {axes: [8, 4]}, far: {axes: [key]}, few: {axes: []}, flag: {axes: [], dtype: bool}}
""",
    "all_packed": """
layout: packed
rope: {layout: interleaved}
mask: [causal, segments]
score: [log_decay, {relative_bias: {buckets: 8, max_distance: 9}}]
sink: true
""",
    "all_keys": "score: [{expr: '0.5 * score'}]\n",
    "blocks": "heads: equal\nmask: [{block_sparse: {block: 16}}, causal]\nscore: [log_decay]\n",
}


def load(folder: Path, name: str, text: str) -> Spec:
    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\n{text}")
    return spec.load(path, terms=resources.terms_for(path))


def made(folder: Path, name: str, text: str) -> ModuleType:
    """The test suite of a package."""
    write(RandomSpec(name, f"name: {name}\n{text}"), folder)
    return suite(folder, name)


@pytest.mark.parametrize("which", EARLIER)
@pytest.mark.parametrize("name", SPECS)
def test_all_that_specs_ask_for(name: str, which: str, tmp_path: Path) -> None:
    module = made(tmp_path, f"{name}_{which}", SPECS[name] + f"algorithm: {which}\n")
    case = dataclasses.replace(module.SMALL, q_lens=(40, 3), k_lens=(70, 35)) if module.PACKED else module.SMALL
    module.check(case)
    if not module.PACKED:
        module.check(dataclasses.replace(case, q_lens=(40,), k_lens=(97,)))


@pytest.mark.parametrize("which", EARLIER)
@pytest.mark.parametrize("seed", range(3))
def test_random_specs(seed: int, which: str, tmp_path: Path) -> None:
    text = generate(seed).yaml.replace(", grad: true", "").split("\n", 1)[1]
    module = made(tmp_path, f"random_{seed}_{which}", f"{text}algorithm: {which}\n")
    for case in (module.SMALL, module.CASES[2]):
        module.check(case)


def named(tree: ast.AST) -> set[str]:
    """All names and attributes that code reads."""
    found = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return found | {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}


@pytest.mark.parametrize("which", EARLIER)
@pytest.mark.parametrize("name", SPECS)
def test_nothing_is_rendered_for_a_backward_pass(name: str, which: str, tmp_path: Path) -> None:
    loaded = load(tmp_path, name, SPECS[name] + f"algorithm: {which}\n")
    files = unformatted.files(loaded)
    words = re.compile(r"backward|gradient|autograd|dout|needs_input_grad|\bsign\b|REVERSE|reverse\b", re.IGNORECASE)
    for file in ("kernels.py", "launch.py"):
        assert not words.findall(files[file].replace("There is no backward pass.", "")), file
    trees = {file: ast.parse(text) for file, text in files.items()}
    read = set().union(*map(named, trees.values()))
    # a function that nothing uses would be dead code
    for file in ("kernels.py", "launch.py", "api.py", "reference.py"):
        functions = {n.name for n in ast.walk(trees[file]) if isinstance(n, ast.FunctionDef)}
        assert {f for f in functions if f != "_" and not f.startswith("__")} <= read | {"attention", "reference"}, file
    for function in (n for n in trees["kernels.py"].body if isinstance(n, ast.FunctionDef)):
        unread = {argument.arg for argument in function.args.args} - named(function)
        # kernels that only evaluate masks all take the same arguments
        assert not unread or function.name in ("bounds", "ranges"), (function.name, unread)
    planned = plan.build(loaded)
    assert set(planned.tables.single) == {"forward"}
    assert not [a.name for a in planned.arguments if a.grad]


def test_steps_that_read_what_others_wrote_wait_for_them() -> None:
    path = resources.variants()["flash1"]
    text = unformatted.file(spec.load(path, terms=resources.terms_for(path)), "kernels.py")
    step = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == "attend")
    assert ast.unparse(step.body[-1]) == "tl.debug_barrier()"
    kernel = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == "forward")
    loops = [n for n in ast.walk(kernel) if isinstance(n, ast.For)]
    inner = [n for n in loops if any(isinstance(part, ast.Expr) and "attend(" in ast.unparse(part) for part in n.body)]
    assert inner and all("num_stages=1" in ast.unparse(n.iter) for n in inner)


@pytest.mark.parametrize("name", EARLIER)
def test_pytorch_takes_the_operators_and_asks_for_no_gradient(name: str, tmp_path: Path) -> None:
    module = made(tmp_path, f"whole_{name}", f"mask: [causal]\nalgorithm: {name}\n")
    launch: Any = importlib.import_module(f"whole_{name}.launch")
    inputs = module.make_inputs(module.SMALL)
    torch.library.opcheck(launch._attend.traced, (inputs["q"], inputs["k"], inputs["v"], None, 0.25))
    with pytest.raises(RuntimeError, match=f"forward pass only, its spec says `algorithm: {name}`"):
        torch.func.grad(lambda q: module.checks.attention(**inputs | {"q": q}).sum())(inputs["q"])


@pytest.mark.parametrize("name", EARLIER)
def test_what_is_told_of_them(name: str, tmp_path: Path) -> None:
    loaded = load(tmp_path, "mine", f"mask: [causal]\nscore: [alibi]\nalgorithm: {name}\n")
    told = summary.text(loaded)
    assert f", forward only, algorithm {name}\n" in told
    assert "d score" not in told and "learned" not in told
    assert "d score" in summary.text(load(tmp_path, "mine", "mask: [causal]\nscore: [alibi]\n"))
    assert "debug_barrier" in explain.page(loaded, 64, 64) or name != "flash1"
