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
import importlib, pathlib, subprocess, sys, tempfile
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from attnforge.language import spec
from attnforge.plan import plan
from attnforge.source import resources

name = sys.argv[1]
path = pathlib.Path("specs") / f"{name}.yaml"
planned = plan.build(spec.load(path, terms=resources.terms_for(path)))
block_m, block_n, _, stages = planned.tables.hopper["forward"][128]
sizes = dict(GROUP=2, DV=128, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=128, BLOCK_DV=128, STAGES=stages, Q_STAGES=2)
lead = [1] * (planned.storage.coordinates("q", "h", "0").count(",") - 1)
signature = {}
for p in planned.hopper.kernel.parameters:
    rows = 64 if p.name == "q_desc" else block_n
    layout = gl.NVMMASharedLayout.get_default_for([*lead, rows, 128], gl.bfloat16)
    tiles = f"tensordesc<bf16{[*lead, rows, 128]},{layout!r}>"
    kinds = {"constexpr": "constexpr", "tiles": tiles, "rows": "*" + p.element, "*T": "*bf16"}
    signature[p.name] = "constexpr" if p.absent else kinds.get(p.type, p.type)
constants = {name: size for name, size in sizes.items() if name in signature}
constants |= {p.name: None for p in planned.hopper.kernel.parameters if p.absent}
kernel = importlib.import_module(f"generated.{name}.hopper").forward
source = GluonASTSource(kernel, signature, constants, {})
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(num_warps=4, maxnreg=168))
text = pathlib.Path(tempfile.mkdtemp()) / "kernel.ptx"
text.write_text(made.asm["ptx"])
ptxas = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
command = [ptxas, "-arch=sm_90a", "-v", text, "-o", text.with_suffix(".cubin")]
told = subprocess.run(command, capture_output=True, text=True)
print(made.asm["ptx"].count("wgmma.mma_async"), "serialized" in told.stderr)
"""


@pytest.mark.parametrize("name", ["causal", "packed_log_decay", "gpt_oss_window"])
def test_products_are_not_serialized(name: str) -> None:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'generator'}"
    }
    done = subprocess.run([sys.executable, "-c", CODE, name], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    products, serialized = done.stdout.split()
    assert int(products) > 0
    assert serialized == "False"
