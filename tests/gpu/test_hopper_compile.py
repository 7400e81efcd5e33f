"""Kernels for Hopper GPUs, compiled without one: products overlap, as the assembler has no reason to serialize them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from pathlib import Path
import unformatted
from attnforge.gpu import compile
from attnforge.source import resources

target = compile.targets(["sm_90"])["sm_90"]
launches = unformatted.launches(resources.variants()[sys.argv[2]], Path(sys.argv[1]), int(sys.argv[4]), "bf16")
(case,) = (case for case in launches.of("sm_90") if case.name == sys.argv[3])
made = compile.measured(case, target)
print(made.matrix["wgmma.mma_async"], made.threads, *made.warnings, sep="|")
"""


@pytest.mark.parametrize(
    ("name", "kernel", "size"),
    [
        ("causal", "hopper.forward", 128),
        ("packed_log_decay", "hopper.forward", 128),
        ("gpt_oss_window", "hopper.forward", 128),
        ("causal", "hopper_backward.backward", 128),
        ("causal", "hopper_backward.backward", 64),
        ("packed_rope", "hopper_backward.backward", 128),
        ("gemma2_local", "hopper_backward.backward", 128),
    ],
)
def test_products_are_not_serialized(name: str, kernel: str, size: int, tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join(str(ROOT / place) for place in ("generator", "tests"))
    command = [sys.executable, "-c", CODE, str(tmp_path), name, kernel, str(size)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    products, threads, *warnings = done.stdout.strip().split("|")
    assert int(products) > 0
    # two workers of four warps and the loader's, which counts as four
    assert int(threads) == 12 * 32
    assert not [warning for warning in warnings if "serialized" in warning]
