"""Heads wider than 256: kernels against references, and a launch of its own for each of dk and dv."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import devices  # noqa: F401  # where kernels run is settled before triton is imported
import pytest
from random_specs import RandomSpec, generate, refused, suite, write

pytestmark = pytest.mark.slow

SPECS = {
    "causal": "mask: [causal]",
    "gemma": "rope: {layout: half}\nmask: [causal, sliding_window: {size: 20}]\nscore: [softcap: {cap: 5.0}]",
    "rope_of_some": "heads: equal\nrope: {layout: interleaved, dims: 272}\nmask: [causal]\nsink: true",
    "packed": "layout: packed\nmask: [causal]\nscore: [log_decay]",
    "dropped": "mask: [causal]\ndropout: true\nscore: [alibi]",
    "learned": "mask: [causal]\nscore:\n  - expr: 'score + at_keys[min(abs(q - k), 7)] + pairs'\ninputs:\n"
    "  at_keys: {axes: [head, key, 8], grad: true}\n  pairs: {axes: [head, query, key], grad: true}",
}
SIZES = [("causal", 320, 320), ("causal", 16, 512), ("causal", 257, 16), ("gemma", 512, 512),
         ("rope_of_some", 320, 272), ("packed", 272, 512), ("dropped", 300, 264), ("learned", 260, 300)]  # fmt: skip


def made(name: str, folder: Path) -> ModuleType:
    """The suite of a small spec."""
    write(RandomSpec(f"wide_{name}", f"name: wide_{name}\n{SPECS[name]}\n"), folder)
    return suite(folder, f"wide_{name}")


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    """The suites of all of them."""
    folder = tmp_path_factory.mktemp("wide")
    return {name: made(name, folder) for name in SPECS}


@pytest.mark.parametrize(("name", "head_dim", "v_dim"), SIZES)
def test_kernels_follow_the_reference(suites: dict[str, ModuleType], name: str, head_dim: int, v_dim: int) -> None:
    small = suites[name].SMALL
    lens = (33, 0, 5) if suites[name].PACKED else (40,)
    suites[name].check(dataclasses.replace(small, q_lens=lens, k_lens=lens, D=head_dim, Dv=v_dim))


@pytest.mark.parametrize("seed", [3, 14])
def test_random_kernels_follow_the_reference(seed: int, tmp_path: Path) -> None:
    given = generate(seed)
    assert not refused(given)
    write(given, tmp_path)
    module = suite(tmp_path, given.name)
    module.check(dataclasses.replace(module.SMALL, D=288, Dv=320))


@pytest.mark.parametrize(
    ("head_dim", "v_dim", "made"), [(256, 256, [None]), (257, 16, ["dk", "dv"]), (16, 300, ["dk", "dv"])]
)
def test_dk_and_dv_of_wide_heads_have_a_launch_each(
    suites: dict[str, ModuleType], head_dim: int, v_dim: int, made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = suites["causal"]
    runtime = importlib.import_module(f"{module.__package__}.runtime")
    found, launch = [], runtime.launch

    def noted(cache: Any, kernel: Any, blocks: Any, *more: Any, **also: Any) -> None:
        found.extend(blocks[2:])
        launch(cache, kernel, blocks, *more, **also)

    monkeypatch.setattr(runtime, "launch", noted)
    small = dataclasses.replace(module.SMALL, q_lens=(5,), k_lens=(5,), D=head_dim, Dv=v_dim)
    module.VARIANT.run(module.make_inputs(small))
    assert found == made


def test_wider_heads_are_refused(suites: dict[str, ModuleType]) -> None:
    module = suites["causal"]
    inputs = module.make_inputs(dataclasses.replace(module.SMALL, D=513))
    with pytest.raises(ValueError, match="q: expected a head size from 1 to 512, got 513"):
        module.checks.attention(**inputs)
    inputs = module.make_inputs(dataclasses.replace(module.SMALL, Dv=513))
    with pytest.raises(ValueError, match="v: expected a head size from 1 to 512, got 513"):
        module.checks.attention(**inputs)
