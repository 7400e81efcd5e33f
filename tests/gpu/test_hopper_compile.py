"""Kernels for Hopper GPUs, compiled without one: products overlap, as the assembler has no reason to serialize them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compiling import UNASSEMBLED, UNLOWERED, Compiler

pytestmark = pytest.mark.slow

CODE = """
import sys
import unformatted
from attnforge.gpu import compile

target = compile.targets(["sm_90"])["sm_90"]
head_dim, v_dim = map(int, sys.argv[4:6])
launches = unformatted.shipped(sys.argv[2], head_dim, "bf16", v_dim)
case, *more = (case for case in launches.of("sm_90") if case.name == sys.argv[3])  # `more` for longer sequences
"""
MEASURED = """
for one in (case, *more):
    made = compile.measured(one, target)
    print(made.matrix["wgmma.mma_async"], made.threads, made.spills, made.fits("sm_90"), *made.warnings, sep="|")
"""
COUNTED = f"""{UNASSEMBLED}
import re

made, _ = compile.compiled(case, target)
columns = map(int, re.findall(r"wgmma.mma_async.sync.aligned.m64n([0-9]+)k16", made.asm["ptx"]))
print(sum(columns), made.asm["ptx"].count("red.relaxed.gpu.global.add.v4.f32"))
"""
BITS = f"""{UNASSEMBLED}
CUDABackend.make_ptx = lambda self, source, metadata, *_: metadata.update(name="unassembled") or ""
made, _ = compile.compiled(case, target)
text = made.asm["llir"]
print(text.count(" x i1>") - text.count("select <2 x i1>"))  # a choice of two becomes two comparisons
"""
BARRIERS = f"""{UNASSEMBLED}
nothing = case._replace(signature=case.signature | {{"seed": "constexpr"}}, constants=case.constants | {{"seed": None}})
for one in (case, nothing):
    text = compile.compiled(one, target)[0].asm["ptx"]
    print(*(text.count(name) for name in ("bar.sync", "bar.warp.sync", "shfl.sync")))
"""
FEW = 24  # before the loop: values that depend on a program's position are computed once for all warps
REFUSED = f"""{UNLOWERED}
import json

case = case._replace(constants=case.constants | json.loads(sys.argv[6]))
try:
    compile.compiled(case, target)
except compile.NotCompiled as why:
    print(why)
"""


@pytest.mark.parametrize(
    ("name", "kernel", "size", "v_size"),
    [
        ("causal", "hopper.forward", 128, 128),
        ("packed_log_decay", "hopper.forward", 128, 128),
        ("gpt_oss_window", "hopper.forward", 128, 128),
        ("block_sparse", "hopper.forward", 128, 128),
        ("causal", "hopper_backward.backward", 128, 128),
        ("causal", "hopper_backward.backward", 64, 64),
        ("packed_rope", "hopper_backward.backward", 128, 128),
        ("gemma2_local", "hopper_backward.backward", 128, 128),
        ("packed_rope", "hopper_wide.backward", 192, 128),
        ("packed_rope", "hopper_wide.backward", 256, 256),
        ("gemma2_local", "hopper_wide.backward", 256, 256),
        ("causal", "hopper_wide.backward", 192, 128),
        ("deepseek_mla", "hopper_wide.backward", 192, 128),
        ("full", "hopper_backward.backward", 64, 64),
        ("full", "hopper_wide.backward", 256, 256),
        *(("gpt2_dropout", "hopper.forward", size, size) for size in (64, 128, 256)),
        *(("gpt2_dropout", "hopper_backward.backward", size, size) for size in (64, 128)),
        ("gpt2_dropout", "hopper_wide.backward", 256, 256),
    ],
)
def test_products_are_not_serialized(
    name: str, kernel: str, size: int, v_size: int, compiler: Compiler, tmp_path: Path
) -> None:
    (line,) = compiler.run(CODE + MEASURED, tmp_path, name, kernel, str(size), str(v_size))
    products, threads, spills, fits, *warnings = line.split("|")
    assert int(products) > 0
    # two or three groups of four warps, and the loader's, which counts as four
    assert int(threads) == (16 if "wide" in kernel else 12) * 32
    assert not [warning for warning in warnings if "serialized" in warning]
    assert fits == "True"
    assert size == v_size or name == "packed_rope" or int(spills) <= FEW


# terms that load much data, in programs that may have no tile to mask
@pytest.mark.parametrize(
    ("name", "kernel", "size"),
    [
        ("t5_encoder", "hopper.forward", 64),
        ("t5_encoder", "hopper_backward.backward", 64),
        ("t5_decoder", "hopper_backward.backward", 64),
        ("swin", "hopper_backward.backward", 64),
        ("t5_encoder", "hopper_backward.backward", 128),
        ("t5_encoder", "hopper_wide.backward", 256),
        ("log_decay", "hopper_backward.backward", 128),
        ("packed_log_decay", "hopper_backward.backward", 64),  # as many parameters as two stages of keys leave room for
        ("packed_log_decay", "hopper_backward.backward", 128),
    ],
)
def test_registers_are_set_before_they_are_read(
    name: str, kernel: str, size: int, compiler: Compiler, tmp_path: Path
) -> None:
    lines = compiler.run(CODE + MEASURED, tmp_path, name, kernel, str(size), str(size))
    assert len(lines) == (2 if kernel == "hopper.forward" else 1)
    for line in lines:
        products, *_, fits = line.split("|")  # and no warnings
        assert int(products) > 0 and fits == "True"


@pytest.mark.parametrize(
    ("size", "v_size", "columns"),
    [(192, 128, 192), (160, 64, 192), (160, 160, 192), (200, 128, 256), (256, 256, 256)],
)
def test_products_of_wide_heads_leave_out_empty_columns(
    size: int, v_size: int, columns: int, compiler: Compiler, tmp_path: Path
) -> None:
    (line,) = compiler.run(CODE + COUNTED, tmp_path, "causal", "hopper_wide.backward", str(size), str(v_size))
    multiplied, added = map(int, line.split())
    # scores, dK and dQ have the columns of q and k, dV and dP those of v, with 16 of 64 rows at a time
    v_columns = 1 << (v_size - 1).bit_length()
    assert multiplied == 64 // 16 * (3 * columns + 2 * v_columns)
    # each of 128 threads adds its part of 64 * 64 values, four at a time
    assert added == columns // 64 * 8


@pytest.mark.parametrize(
    ("name", "kernel", "size", "constants", "said"),
    [
        ("transfusion", "hopper.forward", 128, {"STAGES": 1}, "takes two stages"),
        ("log_decay", "hopper.forward", 128, {"STAGES": 1}, ""),
        ("causal", "hopper.forward", 128, {"STAGES": 1}, ""),
        ("causal", "hopper_backward.backward", 64, {"BLOCK_M": 64}, "two workers"),
        ("causal", "hopper_backward.backward", 128, {"BLOCK_N": 64}, "two workers"),
        ("causal", "hopper_wide.backward", 256, {"BLOCK_M": 128}, "64 queries by 64 keys"),
        ("causal", "hopper_wide.backward", 256, {"BLOCK_N": 128}, "64 queries by 64 keys"),
    ],
)
def test_tiles_that_a_kernel_is_not_made_for_are_refused(
    name: str, kernel: str, size: int, constants: dict[str, int], said: str, compiler: Compiler, tmp_path: Path
) -> None:
    found = compiler.run(CODE + REFUSED, tmp_path, name, kernel, str(size), str(size), json.dumps(constants))
    assert said in found[0] if said else found == []


@pytest.mark.parametrize(
    ("kernel", "size", "barriers"),
    [("hopper.forward", 64, 1), ("hopper_backward.backward", 128, 1), ("hopper_wide.backward", 256, 2)],
)
def test_warps_exchange_random_numbers_by_themselves(
    kernel: str, size: int, barriers: int, compiler: Compiler, tmp_path: Path
) -> None:
    """All warps of a worker wait once per step, before they overwrite numbers; wide heads have no memory for that."""
    found = compiler.run(CODE + BARRIERS, tmp_path, "gpt2_dropout", kernel, str(size), str(size))
    (more, by_warps, shuffles), (fewer, others, known) = (map(int, line.split()) for line in found)
    if "wide" in kernel:  # before numbers are overwritten by weights as well
        assert more - fewer == barriers
    else:
        assert more - fewer <= barriers and by_warps > others
    assert shuffles == known


@pytest.mark.parametrize("kernel", ["hopper.forward", "hopper_backward.backward"])
def test_masks_compare_distances_one_by_one(kernel: str, compiler: Compiler, tmp_path: Path) -> None:
    """A vector of truth values would be packed into a word, and unpacked again with twice as many instructions."""
    (found,) = compiler.run(CODE + BITS, tmp_path, "sliding_window", kernel, "128", "128")
    assert int(found) < 8
