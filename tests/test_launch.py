"""What a launch with shapes that were there before hands to kernels is what a first launch hands them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import attnforge
from attnforge import resources

GENERATED = Path(__file__).parents[1] / "generated"
SCRIPT = Path(__file__).with_name("launches.py")
VARIANTS = sorted(resources.variants())


def compared(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(Path(attnforge.__file__).parents[1])}
    return subprocess.run([sys.executable, SCRIPT, folder, *names], env=env, capture_output=True, text=True)


@pytest.mark.parametrize("part", range(2))
def test_launches_that_know_their_shapes_are_first_ones(part: int) -> None:
    names = VARIANTS[part::2]
    done = compared(GENERATED, *names)
    assert done.stdout.split() == names, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(x.shape, x.stride(), x.dtype, x.data_ptr() % 16)", "(x.shape, x.dtype, x.data_ptr() % 16)"),
        ("(x.shape, x.stride(), x.dtype, x.data_ptr() % 16)", "(x.shape, x.stride(), x.dtype)"),
        ("(x.shape, x.stride(), x.dtype, x.data_ptr() % 16)", "(x.stride(), x.dtype, x.data_ptr() % 16)"),
        ("key = (kernel.__name__, *blocks)", "key = bool(tiles)"),
        ("fields, base=x", "fields, base=tiles.base"),
    ],
)
def test_comparison_finds(right: str, wrong: str, tmp_path: Path) -> None:
    package = tmp_path / "causal"
    package.mkdir()
    for path in (GENERATED / "causal").glob("*.py"):
        text = path.read_text()
        (package / path.name).write_text(text.replace(right, wrong) if path.name == "launch.py" else text)
    assert (package / "launch.py").read_text() != (GENERATED / "causal" / "launch.py").read_text()
    assert compared(tmp_path, "causal").returncode == 1
