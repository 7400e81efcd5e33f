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

name, kind, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
path = pathlib.Path("specs") / f"{name}.yaml"
planned = plan.build(spec.load(path, terms=resources.terms_for(path)))
planned_kernel = planned.hopper.forward if kind == "forward" else planned.hopper.backward.kernel
block_m, block_n, _, stages = planned.tables.hopper[kind][size]
sizes = dict(GROUP=2, D=size, DV=size, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=size, BLOCK_DV=size, STAGES=stages)
sizes |= dict(Q_STAGES=2, TILE_AXIS=1)
lead = [1] * (planned.storage.coordinates("q", "h", "0").count(",") - 1)
halves = ("q_desc",) if kind == "forward" else ("k_desc", "v_desc")
signature = {}
for p in planned_kernel.parameters:
    rows = 64 if p.name in halves else block_n if p.name in ("k_desc", "v_desc") else block_m
    layout = gl.NVMMASharedLayout.get_default_for([*lead, rows, size], gl.bfloat16)
    plain = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    kinds = {
        "constexpr": "constexpr",
        "tiles": f"tensordesc<bf16{[*lead, rows, size]},{layout!r}>",
        "fragments": f"tensordesc<fp32[16, 256],{plain!r}>",
        "rows": "*" + p.element,
        "*T": "*bf16",
    }
    signature[p.name] = "constexpr" if p.absent else kinds.get(p.type, p.type)
constants = {name: size for name, size in sizes.items() if name in signature}
constants |= {p.name: None for p in planned_kernel.parameters if p.absent}
file = {"forward": "hopper", "backward": "hopper_backward"}[kind]
kernel = getattr(importlib.import_module(f"generated.{name}.{file}"), kind)
source = GluonASTSource(kernel, signature, constants, {})
options = dict(num_warps=4, maxnreg=128 if block_m == 192 else 168)
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
text = pathlib.Path(tempfile.mkdtemp()) / "kernel.ptx"
text.write_text(made.asm["ptx"])
ptxas = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
command = [ptxas, "-arch=sm_90a", "-v", text, "-o", text.with_suffix(".cubin")]
told = subprocess.run(command, capture_output=True, text=True)
print(made.asm["ptx"].count("wgmma.mma_async"), "serialized" in told.stderr)
"""


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("causal", "forward", 128),
        ("packed_log_decay", "forward", 128),
        ("gpt_oss_window", "forward", 128),
        ("causal", "backward", 128),
        ("causal", "backward", 64),
        ("packed_rope", "backward", 128),
        ("gemma2_local", "backward", 128),
    ],
)
def test_products_are_not_serialized(name: str, kind: str, size: int) -> None:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'generator'}"
    }
    command = [sys.executable, "-c", CODE, name, kind, str(size)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    products, serialized = done.stdout.split()
    assert int(products) > 0
    assert serialized == "False"
