"""Kernels for Hopper GPUs, compiled without one: products overlap, as the assembler has no reason to serialize them."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiling import Compiler

pytestmark = pytest.mark.slow

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
        ("packed_rope", "hopper_wide.backward", 256),
        ("gemma2_local", "hopper_wide.backward", 256),
    ],
)
def test_products_are_not_serialized(name: str, kernel: str, size: int, compiler: Compiler, tmp_path: Path) -> None:
    (line,) = compiler.run(CODE, tmp_path, name, kernel, str(size))
    products, threads, *warnings = line.split("|")
    assert int(products) > 0
    # two or three groups of four warps and the loader's, which counts as four
    assert int(threads) == (16 if "wide" in kernel else 12) * 32
    assert not [warning for warning in warnings if "serialized" in warning]
