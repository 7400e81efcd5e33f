"""Heads wider than 256: kernels against references, and separate launches for dk and dv."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import devices  # noqa: F401  # where kernels run is settled before triton is imported
import pytest
import torch
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
    "latent": "latent: true\nmask: [causal]",
    "latent_packed": "latent: true\nlayout: packed\nmask: [causal]\nscore: [log_decay]\nrope: {layout: half}",
    "latent_learned": "latent: true\nmask: [causal]\ndropout: true\nscore: [{expr: 'min(score, 3.0) + pairs'}]\n"
    "inputs: {pairs: {axes: [head, query, key], grad: true}}",
}
SIZES = [("causal", 320, 320), ("causal", 16, 512), ("causal", 257, 16), ("gemma", 512, 512),
         ("rope_of_some", 320, 272), ("packed", 272, 512), ("dropped", 300, 264), ("learned", 260, 300),
         ("latent", 576, 512), ("latent", 513, 512), ("latent", 64, 32),
         ("latent_packed", 576, 512), ("latent_packed", 48, 16),
         ("latent_learned", 544, 128)]  # fmt: skip


def made(name: str, folder: Path) -> ModuleType:
    """The suite of a small spec."""
    write(RandomSpec(f"wide_{name}", f"name: wide_{name}\n{SPECS[name]}\n"), folder)
    return suite(folder, f"wide_{name}")


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    """The suites of all small specs."""
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


def test_values_may_be_columns_of_keys_without_descriptors(
    suites: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = suites["latent"]
    runtime = importlib.import_module(f"{module.__package__}.runtime")
    monkeypatch.setattr(runtime, "copies_tiles", lambda device: False)
    case = dataclasses.replace(module.SMALL, q_lens=(20,), k_lens=(40,), D=576, Dv=512)
    module.check(case, v=module.make_inputs(case)["k"][..., :512])


def test_rows_of_no_sequence_get_zeros_in_all_columns(suites: dict[str, ModuleType]) -> None:
    module = suites["latent_packed"]
    inputs = module.make_inputs(dataclasses.replace(module.SMALL, q_lens=(9, 8), k_lens=(9, 8), D=576, Dv=32))
    inputs |= {name: cuts - cuts // 17 * 3 for name, cuts in inputs.items() if name.startswith("cu_seqlens")}
    found = module.checks.run_on_nan(module.VARIANT, inputs)
    for name in ("dq", "dk"):
        assert (found[name][14:] == 0).all() and found[name][:14, :, 512:].abs().min() > 0, name


def test_wider_heads_are_refused(suites: dict[str, ModuleType]) -> None:
    module = suites["causal"]
    inputs = module.make_inputs(dataclasses.replace(module.SMALL, D=513))
    with pytest.raises(ValueError, match="q: expected a head size from 1 to 512, got 513"):
        module.checks.attention(**inputs)
    inputs = module.make_inputs(dataclasses.replace(module.SMALL, Dv=513))
    with pytest.raises(ValueError, match="v: expected a head size from 1 to 512, got 513"):
        module.checks.attention(**inputs)
    inputs = suites["latent"].make_inputs(dataclasses.replace(module.SMALL, D=577))
    with pytest.raises(ValueError, match="q: expected a head size from 1 to 576, got 577"):
        suites["latent"].checks.attention(**inputs)


def test_a_nan_stays_in_its_own_sequence(suites: dict[str, ModuleType]) -> None:
    module = suites["latent_packed"]
    inputs = module.make_inputs(dataclasses.replace(module.SMALL, q_lens=(9, 8), k_lens=(9, 8), D=576, Dv=32))
    before = module.VARIANT.run(inputs)
    for name in ("q", "k"):
        inputs[name][9:, :, 512:] = torch.nan
    after = module.VARIANT.run(inputs)
    for name in ("out", "dq", "dk", "dv"):
        assert torch.equal(before[name][:9], after[name][:9]), name
