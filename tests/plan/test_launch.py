"""What launches hand to kernels: one with shapes that were there before hands on what a first one does."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import attnforge
from attnforge.gpu import bench
from attnforge.source import resources

GENERATED = Path(__file__).parents[2] / "generated"
SCRIPT = Path(__file__).parents[1] / "launches.py"
VARIANTS = sorted(resources.variants())


def compared(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(Path(attnforge.__file__).parents[1])}
    return subprocess.run([sys.executable, SCRIPT, folder, *names], env=env, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_launches_that_know_their_shapes_are_first_ones(part: int) -> None:
    names = VARIANTS[part::2]
    done = compared(GENERATED, *names)
    assert done.stdout.split() == names, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(x.shape, x.stride(), x.dtype, x.data_ptr() % 16)", "(x.shape, x.dtype, x.data_ptr() % 16)"),
        ("(x.shape, x.stride(), x.dtype, x.data_ptr() % 16)", "(x.shape, x.stride(), x.dtype)"),
        ("(x.shape, x.stride(), x.dtype, x.data_ptr() % 16)", "(x.stride(), x.dtype, x.data_ptr() % 16)"),
        ("key = (kernel.fn, *blocks)", "key = bool(blocks)"),
        ("descriptor.__dict__.update(known, base=x)", "descriptor.__dict__.update(known)"),
        ("if not agree(*tensors) or", "if"),
        ("map(torch.Tensor.data_ptr, tensors)) % 16:", "map(torch.Tensor.data_ptr, tensors)) % 2:"),
        ("            if given[i] is not None:\n                return False", "            pass"),
    ],
)
def test_comparison_finds(right: str, wrong: str, tmp_path: Path) -> None:
    package = tmp_path / "causal"
    package.mkdir()
    for path in (GENERATED / "causal").glob("*.py"):
        text = path.read_text()
        (package / path.name).write_text(text.replace(right, wrong) if path.name == "runtime.py" else text)
    assert (package / "runtime.py").read_text() != (GENERATED / "causal" / "runtime.py").read_text()
    assert compared(tmp_path, "causal").returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("decode_arguments", "(x.shape, x.stride(), x.dtype,", "(x.shape, x.dtype,"),
        ("decode_arguments", "(x.shape, x.stride(), x.dtype,", "(x.stride(), x.dtype,"),
        ("decode_arguments", "(*numbers, *shapes)", "(*shapes,)"),
        ("decode_launch", "call.longest, splits, split_size, lse is None)", "call.longest, lse is None)"),
    ],
)
def test_comparison_of_decoding_finds(file: str, right: str, wrong: str, tmp_path: Path) -> None:
    package = tmp_path / "causal"
    shutil.copytree(GENERATED / "causal", package)
    text = (package / f"{file}.py").read_text()
    assert right in text
    (package / f"{file}.py").write_text(text.replace(right, wrong))
    assert compared(tmp_path, "causal").returncode == 1


@pytest.fixture
def runtime() -> ModuleType:
    """The machinery of launching, the same in every package."""
    bench.module("launched_causal", GENERATED / "causal" / "__init__.py")
    return importlib.import_module("launched_causal.runtime")


@pytest.mark.parametrize(
    ("heads", "kib", "tiles", "grid"),
    [
        (32, 1024, 5, (32, 5, 1)),  # all fit
        (32, 256, 5, (8, 5, 4)),
        (24, 224, 5, (6, 5, 4)),  # seven would fit, but do not divide them
        (32, 1, 5, (1, 5, 32)),
        (31, 512, 5, (1, 5, 31)),
        (65537, 1, 5, (65537, 5, 1)),  # a grid's last axis takes no more than 65535
        (32, 256, 65535, (8, 65535, 4)),
        (32, 256, 65536, (65536, 8, 4)),  # nor does the second
    ],
)
def test_heads_come_in_groups_that_the_cache_has_room_for(
    heads: int, kib: int, tiles: int, grid: tuple[int, ...], runtime: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "cache_share", lambda device: kib * 1024)
    keys = torch.empty(1, device="meta").expand(1, 64, heads, 64)  # 16 KiB each, and their values
    for rows in (tiles * 16, tiles * 16 - 15):
        assert runtime.grid(heads, rows, 16, keys, keys) == grid
        assert grid[runtime.tile_axis(rows, 16)] == tiles


@pytest.mark.parametrize(
    ("rows", "described"),
    [
        (torch.zeros(2, 3, 8), True),
        (torch.zeros(2, 3, 12)[..., :8], True),
        (torch.zeros(2, 1, 8).expand(2, 3, 8), True),
        (torch.zeros(1, 1, 7), True),
        (torch.zeros(2, 4, 1), False),  # one for all
        (torch.zeros(2, 3, 8, dtype=torch.bfloat16), True),
        (torch.zeros(2, 3, 7), False),
        (torch.zeros(2, 3, 12, dtype=torch.bfloat16), False),
        (torch.zeros(2, 3, 9)[..., 1:], False),
        (torch.zeros(8, 3).T, False),
        (torch.zeros(2, 3, 8, dtype=torch.float64), False),
    ],
)
def test_values_of_rows_are_described_where_descriptors_can_read(
    rows: torch.Tensor, described: bool, runtime: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "copies_tiles", lambda device: True)
    assert isinstance(runtime.vector_source(rows, 4), runtime.TensorDescriptor) == described
    assert runtime.vector_source(rows, None) is rows


@pytest.mark.parametrize(
    ("shape", "described"),
    [((2, 3, 8), True), ((2, 3, 7), False), ((1, 1, 7), True), ((8, 1, 1), False), ((1, 1, 1), False)],
)
def test_an_lse_is_described_where_each_heads_begins_at_16_bytes(
    shape: tuple[int, ...], described: bool, runtime: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "copies_tiles", lambda device: True)
    lse = torch.zeros(shape)
    found = runtime.vector_source(lse, 4)
    assert isinstance(found, runtime.TensorDescriptor) == described
    assert not described or (found.base is lse and found.shape == [lse.numel()])


def test_no_two_packages_share_an_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for name, package in (("causal", "one_two/three"), ("full", "one/two_three")):
        target = tmp_path / package
        target.parent.mkdir()
        (target.parent / "__init__.py").touch()
        shutil.copytree(GENERATED / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        found.append(importlib.import_module(package.replace("/", ".") + ".launch"))
    names = [launch._attend.name for launch in found]
    assert names == ["one__two_three_launch_attend", "one_two__three_launch_attend"]
