"""`attnforge inspect` on a small kernel: what it reports, including failures."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from compiling import UNASSEMBLED, UNLOWERED, Compiler

import attnforge
from attnforge.gpu import cases, compile
from attnforge.language import spec
from attnforge.plan import plan
from attnforge.plan.tiles import Tile
from attnforge.source import resources

pytestmark = pytest.mark.slow

KERNELS = """
import triton
import triton.language as tl


@triton.jit
def square(x_ptr, y_ptr, SIZE: tl.constexpr):
    places = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x = tl.load(x_ptr + places)
    tl.store(y_ptr + places, tl.dot(x, x))


@triton.jit
def broken(x_ptr, y_ptr, SIZE: tl.constexpr):
    tl.store(y_ptr, tl.load(x_ptr) + no_such_thing)


@triton.jit
def uneven(x_ptr, y_ptr, SIZE: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, SIZE)).to(tl.float32)
    y = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=3)
    tl.store(y_ptr + tl.arange(0, SIZE), y)


@triton.jit
def unknown(x_ptr, y_ptr, SIZE: tl.constexpr):
    x = tl.load(x_ptr).to(tl.float32)
    tl.store(y_ptr, tl.inline_asm_elementwise("halt $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1))
"""
CODE = """
import importlib.util
import os
import sys
from attnforge.gpu import cases, compile
targets = compile.targets(["sm_90", "gfx942"])
found = importlib.util.spec_from_file_location("toy", sys.argv[1])
toy = importlib.util.module_from_spec(found)
found.loader.exec_module(toy)
signature = {"x_ptr": "*bf16", "y_ptr": "*fp32", "SIZE": "constexpr"}
def case(name):
    return cases.Case(name, getattr(toy, name), signature, {"SIZE": 64}, {"num_warps": 4})
def report(**names):
    found = {arch: [[case(name)] for name in names[arch]] for arch in names}
    print("good" if compile.report("toy", found, {arch: targets[arch] for arch in names}) else "bad")
"""


def reported(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs code that reports on the kernels above, in a process that compiles."""
    env = os.environ | {"PYTHONPATH": str(Path(attnforge.__file__).parents[1]), "TRITON_INTERPRET": "1"}
    env["TRITON_CACHE_DIR"] = str(folder)
    path = folder / "toy.py"
    path.write_text(KERNELS)
    done = subprocess.run([sys.executable, "-c", CODE + code, str(path)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def test_report_tells_of_every_kernel_and_architecture(tmp_path: Path) -> None:
    names = ["square", "broken", "uneven"]
    done = reported(f"report(sm_90={[*names, 'unknown']}, gfx942={names})", tmp_path)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    by_case = {(row[0], row[1]): row[2:] for row in rows}
    tile, registers, spills, shared, programs, matrix = by_case["square", "sm_90"]
    assert tile == "4 warps"
    assert 16 <= int(registers) <= 255
    assert spills == "0"
    assert float(shared.removesuffix(" of 227")) >= 8, "a wgmma reads its 64 x 64 operand of bf16 from shared memory"
    count, scarce = programs.split(", ")
    assert 1 <= int(count) <= 16 and scarce in ("registers", "threads", "shared memory")
    assert "wgmma" in matrix
    assert "mfma" in by_case["square", "gfx942"][5]
    assert by_case["broken", "sm_90"][:2] == by_case["broken", "gfx942"][:2] == ["4 warps", "failed"]
    assert done.stdout.splitlines()[-1] == "bad"
    why = {
        "broken": "CompilationError: NameError('no_such_thing is not defined')",
        "uneven": "number of input elements 64 must be a multiple of the op's packed_element attribute, 3",
        "unknown": "Not a name of any known instruction: 'halt'",
    }
    failed = {"sm_90": ["broken", "uneven", "unknown"], "gfx942": ["broken", "uneven"]}
    assert done.stderr.splitlines() == [
        f"{name} on {arch} does not compile with 4 warps: {why[name]}" for arch in failed for name in failed[arch]
    ]


WRITES = """
def written(*_, **__):
    os.write(2, b"python: Utility.cpp:242: f(): Assertion `a == b' failed.\\n#blocked\\nx.py:5:0: error: Failures\\n")
    raise RuntimeError("PassManager::run failed")
import triton
real, triton.compile = triton.compile, written
report(sm_90=["square"])
triton.compile = lambda *given, **more: os.write(2, b"a remark\\n") and real(*given, **more)
report(sm_90=["square"])
"""


def test_what_the_compiler_writes_is_one_line_where_it_fails(tmp_path: Path) -> None:
    done = reported(WRITES, tmp_path)
    assert [line for line in done.stdout.splitlines() if line in ("good", "bad")] == ["bad", "good"]
    assert sorted(done.stderr.splitlines()) == [
        "a remark", "square on sm_90 does not compile with 4 warps: Assertion `a == b' failed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("registers", "shared", "threads", "arch", "programs"),
    [
        (255, 0, 128, "sm_90", (2, "registers")),  # registers are allocated in multiples of eight
        (128, 0, 128, "sm_90a", (4, "registers")),
        (32, 75 * 1024, 128, "sm_90", (3, "shared memory")),  # each program takes a KiB in addition to its own
        (32, 76 * 1024, 128, "sm_90", (2, "shared memory")),
        (16, 0, 32, "sm_86", (16, "programs")),
        (16, 0, 1024, "sm_86", (1, "threads")),
        (255, 200 * 1024, 128, "sm_86", (0, "shared memory")),
        (128, 40 * 1024, 256, "gfx942", (1, "shared memory")),
        (32, 0, 128, "gfx1100", None),
    ],
)
def test_programs_are_those_that_the_resources_have_room_for(
    registers: int, shared: int, threads: int, arch: str, programs: tuple[int, str] | None
) -> None:
    assert compile.Made(registers, 0, shared, threads, {}, ()).programs(arch) == programs


# the beginning of each piece of code below
PACKAGE = """
import re
import sys
from pathlib import Path
import unformatted
from attnforge.gpu import compile
from attnforge.source import resources
targets = compile.targets(["sm_80", "sm_90"])
def cases(path, head_dim, dtype, arch):
    return unformatted.launches(path, Path(sys.argv[1]) / path.stem, head_dim, dtype).of(arch)
"""


def counts(lines: list[str]) -> dict[str, tuple[int, ...]]:
    """The numbers after each kernel's name."""
    return {line.split()[0]: tuple(map(int, line.split()[1:])) for line in lines}


STARVED = """
found = cases(resources.variants()["causal_mha"], 128, "bf16", "sm_90")
case = next(case for case in found if case.name == "forward")
short = case._replace(options={**case.options, "maxnreg": 128})
for title, one in (("fed", case), ("starved", short), ("starved", short)):  # also once it is in the cache
    compile.report(title, {"sm_90": [[one]]}, {"sm_90": targets["sm_90"]})
"""


def test_warnings_of_the_assembler_are_told(compiler: Compiler, tmp_path: Path) -> None:
    fed, *starved = "\n".join(compiler.run(PACKAGE + STARVED, tmp_path)).split("starved")
    assert "serialized" not in fed
    assert len(starved) == 2
    for told in starved:
        assert told.count("forward on sm_90: (C75") == 1
        assert "wgmma.mma_async instructions are serialized" in told


OPERANDS = """
for name in ("neighbourhood_2d", "packed_causal"):
    for case in cases(resources.variants()[name], 64, "fp16", "sm_90"):
        for line in compile.compiled(case, targets["sm_90"])[0].asm["ttgir"].splitlines():
            if "warp_group_dot %" in line:
                made, first = line.strip().lstrip("%").split("_")[0], line.split("warp_group_dot %")[1]
                if first.startswith("tile"):
                    print(name, case.name, made, "memdesc" in line.split(" : ")[1].split(" * ")[0])
"""


def test_operands_that_outlive_a_step_stay_in_shared_memory(compiler: Compiler, tmp_path: Path) -> None:
    # in registers, the compiled code overwrote them, see benchmarks/NOTES.md
    found = {tuple(line.split()) for line in compiler.run(PACKAGE + UNLOWERED + OPERANDS, tmp_path)}
    assert {(kernel, made) for _, kernel, made, _ in found} == {
        ("forward", "score"), ("backward_dkv", "score"), ("backward_dkv", "dp"), ("backward_dq", "score"),
        ("backward_dq", "dp"), ("measure", "score"),
    }  # fmt: skip
    assert all(shared == "True" for _, _, _, shared in found), found


WIDTHS = """
for case in cases(resources.variants()["packed_causal"], 80, "bf16", "sm_80"):
    text = compile.compiled(case, targets["sm_80"])[0].asm["ptx"]
    kinds = "cp\\.async\\.cg", "ld\\.global\\.v4", "ld\\.global\\.b16"
    print(case.name, *(len(re.findall(kind, text)) for kind in kinds))
"""


def test_tiles_are_loaded_16_bytes_at_a_time_where_nothing_copies_them(compiler: Compiler, tmp_path: Path) -> None:
    found = counts(compiler.run(PACKAGE + UNASSEMBLED + WIDTHS, tmp_path))
    assert set(found) == {"forward", "backward_dkv", "backward_dq", "measure"}
    # ahead of their use, while products run
    assert all(ahead > 0 and narrow == 0 for ahead, _, narrow in found.values()), found


COLUMNS = """
for name in ("flash2_strided_k", "flash1"):
    for arch in ("sm_80", "sm_90"):
        (case,) = cases(resources.variants()[name], 128, "bf16", arch)
        made = compile.compiled(case, targets[arch])[0]
        kinds = "cp\\.async\\.cg", "ld\\.global\\.v4", "ld\\.global\\.b16"
        print(f"{name}_{arch}", *(len(re.findall(kind, made.asm["ptx"])) for kind in kinds),
              len(re.findall(r"ttg\\.barrier all|gpu\\.barrier", made.asm["ttgir"])))
"""


def test_columns_are_loaded_ahead_and_what_is_read_back_is_not(compiler: Compiler, tmp_path: Path) -> None:
    found = counts(compiler.run(PACKAGE + UNASSEMBLED + COLUMNS, tmp_path))
    assert all(found[f"flash2_strided_k_{arch}"][0] > 0 for arch in ("sm_80", "sm_90")), found
    # no loads are in flight while sums are written
    for arch in ("sm_80", "sm_90"):
        ahead, wide, narrow, barriers = found[f"flash1_{arch}"]
        assert (ahead, narrow, barriers) == (0, 0, 1) and wide > 0, found


SIGNS = """
# a kernel's tiles differ in numbers alone, and those for Hopper GPUs call the same functions
portable = [case for case in cases(Path(sys.argv[2]), 64, "fp16", "sm_90") if not case.gluon]
for case in {case.name: case for case in reversed(portable)}.values():
    text = compile.compiled(case, targets["sm_90"])[0].asm["ptx"]
    signed = set(re.findall(r"neg\\.s32\\s+(%r\\d+)", text))
    extremes = re.findall(r"(?:max|min)\\.s32\\s+%r\\d+, (%r\\d+), (%r?\\d+|-\\d+)", text)
    print(case.name, len(extremes), len([x for x in extremes if signed & set(x)]))
"""


def test_no_extreme_is_taken_of_a_negative_integer(compiler: Compiler, tmp_path: Path) -> None:
    # the assembler may lose the sign, see benchmarks/NOTES.md
    path = Path(__file__).parents[1] / "found_specs" / "sign_in_an_extreme.yaml"
    found = counts(compiler.run(PACKAGE + UNASSEMBLED + SIGNS, tmp_path, str(path)))
    assert {"forward", "ranges", "backward_dkv"} <= set(found)
    assert all(count > 0 for name, (count, _) in found.items() if name in ("forward", "ranges"))
    assert all(wrong == 0 for _, wrong in found.values()), found


TILED = ("forward", "backward_dkv", "backward_dq")
GATE = """
for name in sys.argv[2].split(","):
    path = resources.variants()[name]
    for arch in ("sm_80", "sm_90"):
        for head_dim in map(int, sys.argv[3].split(",")):
            for case in cases(path, head_dim, "bf16", arch):
                if not case.name.startswith(("forward", "backward_d")):
                    continue
                # dk, dv of a group of one head compile to a loop that is none
                alone = case._replace(constants=case.constants | {"GROUP": 1})
                both = name in ("causal", "packed_log_decay") and case.name == "backward_dkv"
                for one in (case, alone) if both else (case,):
                    made = compile.measured(one, targets[arch])
                    tile = [case.constants["BLOCK_M"], case.constants["BLOCK_N"], *case.options.values()]
                    print(name, arch, head_dim, case.name, *tile, made.spills, *made.warnings, sep="|")
"""
FEW = 16  # outside loops, as far as the figures of larger tiles show


@pytest.mark.parametrize(
    ("variant", "head_dim"),
    [("causal", 128), ("causal_mha", 256), ("causal_mha", 512),
     ("packed_log_decay", 128), ("pair_bias", 128),
     ("rope", 64), ("flash1", 128), ("flash2_strided_k", 128)],
)  # fmt: skip
def test_first_tiles_neither_serialize_products_nor_spill_unnoticed(
    variant: str, head_dim: int, compiler: Compiler, tmp_path: Path
) -> None:
    noticed = yaml.safe_load((Path(attnforge.__file__).parent / "plan/tiles.yaml").read_text())["spills"]
    rows = [line.split("|") for line in compiler.run(PACKAGE + GATE, tmp_path, variant, str(head_dim))]
    path = resources.variants()[variant]
    tiled = TILED if spec.load(path, terms=resources.terms_for(path)).algorithm.backward else TILED[:1]
    assert {(row[1], row[3]) for row in rows} == set(itertools.product(("sm_80", "sm_90"), tiled))
    for _, arch, head_dim, kernel, *tile, spills in [row[:9] for row in rows]:
        most = noticed[arch].get(kernel, {}).get(int(head_dim), FEW)
        assert int(spills) <= most, f"{kernel} on {arch} with {tile} spills {spills}"
    assert not [row for row in rows if any("serialized" in warning for warning in row[9:])]


def test_the_compiler_takes_the_kernels_of_specs_that_failed_once() -> None:
    root = Path(__file__).parents[1]
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = str(Path(attnforge.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, root / "frontend.py", root / "found_specs"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(resources.variants()))
def test_inspect_knows_the_constants_of_every_kernel(name: str) -> None:
    path = resources.variants()[name]
    planned = plan.build(spec.load(path, terms=resources.terms_for(path)))
    kernels = [*planned.kernels.all, *([planned.statistics.kernel] if planned.statistics else [])]
    for kernel in kernels:
        case = cases._case(kernel, None, planned, (64, 64), "bf16", Tile(64, 64, 4, 2))
        unknown = {x.name for x in kernel.parameters if x.type == "constexpr" and case.constants[x.name] is None}
        # these may be None: what a launch makes, if it makes everything, and tensors that most calls leave out
        assert unknown <= {"MAKES", *(x.name for x in kernel.parameters if x.absent)}
