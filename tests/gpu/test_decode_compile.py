"""Kernels of decoding, compiled without a GPU: tiles of keys are loaded while others are multiplied."""

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
targets = compile.targets(["sm_90"])

folder = Path(sys.argv[1])
for case in unformatted.launches(folder / "some.yaml", folder, int(sys.argv[2]), "bf16").of("sm_90")[-3:]:
    made = compile.measured(case, targets["sm_90"])
    products = made.matrix.get("mma.sync", 0), made.matrix.get("wgmma.mma_async", 0)
    print(case.name, made.spills, made.shared, *products)
"""
SPECS = {
    "causal": "mask: [causal]",
    "sinking window": "rope: {layout: half}\nmask: [causal, sliding_window: {size: 128}]\nsink: true",
    "drafted": "rope: {layout: interleaved}\nmask: [tree]\nscore: [softcap: {cap: 30.0}, alibi]",
    "documents": "mask: [causal, segments]",
    "decays": "mask: [causal]\nscore: [log_decay]",
    "latent": "latent: true\nmask: [causal]",
}
NARROW = [name for name in SPECS if name not in ("decays", "latent")]
WIDTHS = [("causal", 64), *((name, 128) for name in NARROW), ("causal", 256), ("causal", 512), ("latent", 576)]


@pytest.mark.parametrize(("name", "width"), WIDTHS)
def test_kernels_compile(compiler: Compiler, tmp_path: Path, name: str, width: int) -> None:
    (tmp_path / "some.yaml").write_text(f"name: some\nexports: [decode]\n{SPECS[name]}\n")
    lines = compiler.run(CODE, tmp_path, str(width))
    found = {kernel: [int(x) for x in rest] for kernel, *rest in map(str.split, lines)}
    assert list(found) == ["attend_split", "join_splits", "append_rows"]
    assert all(spills <= 8 for spills, *_ in found.values())
    _, shared, products, at_once = found["attend_split"]
    assert max(products, at_once) > 0
    if name == "latent":
        # 64 queries and three tiles of 32 keys, which are values too; no two warps compute the same scores: a product
        # has an instruction for 16 columns of q, and one for 16 keys
        assert 2 * (64 + 3 * 32) * width <= shared <= 227 * 1024
        assert at_once == width // 16 + 32 // 16
        return
    if (name, width) == ("causal", 128):
        # of 32 keys by 8 rows, both times 128 columns, by two warps: without transposing, rows would take 16 of them
        assert products == 2 * (32 * 8 * 128) // (16 * 8 * 16) // 2
    # a loop that does not load ahead would have at most one tile of keys and one of values
    assert shared >= 2 * 2 * (16 if width >= 256 else 32) * width * 2


MANY = """
import sys
from pathlib import Path
import unformatted
from attnforge.gpu import compile
from attnforge.plan import splits
target = compile.targets(["sm_90"])["sm_90"]

folder, width = Path(sys.argv[1]), int(sys.argv[2])
cases = unformatted.launches(folder / "some.yaml", folder, width, "bf16")
decode = cases.planned.decode
(kernel,) = (x for x in decode.kernels if x.name == "attend_split")
tile = splits.tile(decode.splits, False, width, "bf16", "sm_90", rows=64)
made = compile.measured(cases.decoding(kernel, tile), target)
print(tile.block_m, *made.programs("sm_90"))
"""


@pytest.mark.parametrize(("name", "width"), [("drafted", 128), ("decays", 128)])
def test_a_multiprocessor_has_room_for_two_tiles_of_many_rows(
    compiler: Compiler, tmp_path: Path, name: str, width: int
) -> None:
    """Anything that masks and scores load beside keys and values would take the room of the second tile."""
    (tmp_path / "some.yaml").write_text(f"name: some\nexports: [decode]\n{SPECS[name]}\n")
    (line,) = compiler.run(MANY, tmp_path, str(width))
    rows, programs, *_ = line.split()
    assert int(rows) == 64 and int(programs) >= 2


FLOAT8 = """
import sys
from pathlib import Path
import unformatted
from attnforge.gpu import compile
target = compile.targets(["sm_90"])["sm_90"]

folder = Path(sys.argv[1])
cases = unformatted.launches(folder / "some.yaml", folder, int(sys.argv[2]), "bf16").of("sm_90")
(case,) = (x for x in cases if x.name == "attend_split of float8, scaled by head")
kinds = [{"IN_TWOS": False}, {"IN_TWOS": True}]
kinds += [{"IN_TWOS": True, "KV_HEADS": 2, "BLOCK_M": rows, "BLOCK_N": 32, "SUMS": 16} for rows in (8, 16)]
for kind in kinds if sys.argv[2] == "64" else kinds[:2]:
    made, log = compile.compiled(case._replace(constants=case.constants | kind), target)
    found = compile.figures(made, log, target)
    ptx = made.asm["ptx"]
    print(found.spills, ptx.count("ld.shared.b8"), ptx.count(".trans."), ptx.count("cp.async.cg"))
"""


@pytest.mark.parametrize(("name", "width"), [("causal", 64), ("causal", 96), ("causal", 256), ("drafted", 128)])
def test_values_of_float8_are_turned_two_bytes_at_a_time(
    compiler: Compiler, tmp_path: Path, name: str, width: int
) -> None:
    (tmp_path / "some.yaml").write_text(f"name: some\nexports: [decode]\n{SPECS[name]}\n")
    ones, twos, *paired = ([int(x) for x in line.split()] for line in compiler.run(FLOAT8, tmp_path, str(width)))
    assert ones[1] >= 64
    spills, bytes_alone, turned, copies = twos
    assert spills <= 8
    assert bytes_alone < 16
    assert turned > ones[2]
    # keys and values are loaded while others are multiplied, 16 bytes at a time
    assert copies >= ones[3] // 2
    assert len(paired) == 2 * (width == 64) and all(spills == 0 and alone < 16 for spills, alone, *_ in paired)


SUMS = """
import sys
from pathlib import Path
import unformatted
from attnforge.gpu import compile
target = compile.targets(["sm_90"])["sm_90"]

folder = Path(sys.argv[1])
for case in unformatted.launches(folder / "some.yaml", folder, 128, "bf16").of("sm_90")[-5:]:
    early = {"OVERLAP": True} if "OVERLAP" in case.constants else {}
    made, log = compile.compiled(case._replace(constants=case.constants | early), target)
    waits = made.asm["ptx"].count("griddepcontrol.wait"), made.asm["ptx"].count("griddepcontrol.launch_dependents")
    found = compile.figures(made, log, target)
    print(case.name, found.spills, found.shared, made.asm["ttgir"].count("async_copy_global_to_local"), *waits)
"""


def test_kernels_of_running_sums_compile(compiler: Compiler, tmp_path: Path) -> None:
    (tmp_path / "some.yaml").write_text("name: some\nexports: [decode]\nmask: [causal]\nscore: [log_decay]\n")
    found = {kernel: [int(x) for x in rest] for kernel, *rest in map(str.split, compiler.run(SUMS, tmp_path))}
    assert list(found) == ["sum_keys", "sum_stretches", "attend_split", "join_splits", "append_rows"]
    assert all(spills <= 8 for spills, *_ in found.values())
    # each kernel waits for the one before it
    assert [waits for *_, waits, _ in found.values()] == [1, 1, 1, 1, 0]
    # of keys, values, sums of keys, and both parts of what precedes their stretch: two tiles ahead, and one in the loop
    assert found["attend_split"][2] == 5 * 3


HOPPER = """
import sys
from pathlib import Path
import unformatted
from attnforge.gpu import compile
target = compile.targets(["sm_90"])["sm_90"]

folder = Path(sys.argv[1])
launches = unformatted.launches(folder / "some.yaml", folder, 576, sys.argv[3])
page, float8, *absent = sys.argv[2], sys.argv[4], *sys.argv[5:]
(case,) = launches.decoding_on_hopper(int(page), float8)
case = case._replace(
    signature=case.signature | dict.fromkeys(absent, "constexpr"), constants=case.constants | dict.fromkeys(absent)
)
made, log = compile.compiled(case, target)
waits = made.asm["ptx"].count("griddepcontrol.wait"), made.asm["ptx"].count("griddepcontrol.launch_dependents")
found = compile.figures(made, log, target)
print(found.spills, found.shared, found.threads, found.matrix["wgmma.mma_async"], *waits)
print(*found.warnings)
"""
LATENT = {
    "causal": "mask: [causal]",
    "capped window": "mask: [causal, sliding_window: {size: 500}]\nscore: [softcap: {cap: 30.0}, alibi]\nsink: true",
    "tree": "mask: [tree]",
    "first keys": "mask: [causal, any: [sliding_window: {size: 500}, expr: 'k < 4']]",
}


@pytest.mark.parametrize(
    ("name", "page", "dtype", "scales", "absent"),
    [
        ("causal", 64, "fp16", "", ()),
        ("causal", 24, "bf16", "", ()),
        ("capped window", 64, "bf16", "", ()),
        ("tree", 64, "bf16", "", ()),
        ("first keys", 64, "bf16", "", ()),
        # with float8, which the loader converts to float16
        ("causal", 64, "bf16", "head", ()),
        ("causal", 64, "bf16", "head", ("pages_ptr", "cu_seqlens_q_ptr")),
        ("causal", 12, "fp16", "key", ()),
        ("causal", 1, "fp16", "key", ("pages_ptr",)),
        ("first keys", 64, "bf16", "key", ()),
    ],
)
def test_kernels_for_hopper_gpus_compile(
    compiler: Compiler, tmp_path: Path, name: str, page: int, dtype: str, scales: str, absent: tuple[str, ...]
) -> None:
    (tmp_path / "some.yaml").write_text(f"name: some\nlatent: true\nexports: [decode]\n{LATENT[name]}\n")
    numbers, warnings = compiler.run(HOPPER, tmp_path, str(page), dtype, scales, *absent)
    spills, shared, threads, products, *waits = map(int, numbers.split())
    # boxes of 8 rows, and keys in two ranges, need more registers than the loader has; with float8 the spills are
    # before and after loops, except for the scales of each key
    assert spills <= {"": 32 if page % 16 or name == "first keys" else 0, "head": 64, "key": 128}[scales]
    # queries and two tiles of keys, and a scale for each key and each value
    assert 2 * (64 + 2 * 64) * 576 + (scales == "key") * 2 * 2 * 64 * 4 <= shared <= 227 * 1024
    # three workers, and a loader that counts as one more
    assert threads == 16 * 32
    # of 16 columns of q, and of 16 keys and 128 columns of values
    assert products == 576 // 16 + 64 // 16 * 4
    assert waits == [1, 1]
    assert "serialized" not in warnings and "before they are set" not in warnings


SCALED = """
import sys
from pathlib import Path
import unformatted
from attnforge.gpu import compile
targets = compile.targets(["sm_80", "sm_89"])

folder = Path(sys.argv[1])
launches = unformatted.launches(folder / "some.yaml", folder, 64, "bf16")
for arch, target in targets.items():
    for case in launches.of(arch):
        if " of float8, " in case.name:
            print(arch, case.name, compile.measured(case, target).spills, sep="; ")
"""


def test_inspect_compiles_kernels_over_caches_of_float8_where_there_are_any(compiler: Compiler, tmp_path: Path) -> None:
    (tmp_path / "some.yaml").write_text("name: some\nexports: [decode]\nmask: [causal]\n")
    assert compiler.run(SCALED, tmp_path) == [
        f"sm_89; {kernel} of float8, scaled by {scaled}; 0"
        for kernel in ("attend_split", "append_rows")
        for scaled in ("head", "key")
    ]


NAMED = """
import sys
from pathlib import Path
import unformatted

folder = Path(sys.argv[1])
for dtype in ("bf16", "fp16", "fp32"):
    cases = unformatted.launches(folder / "some.yaml", folder, 576, dtype).of("sm_90")
    print(*(case.name for case in cases if case.gluon), sep="; ")
"""


def test_caches_of_float8_are_looked_into_beside_those_of_16_bits(compiler: Compiler, tmp_path: Path) -> None:
    (tmp_path / "some.yaml").write_text(f"name: some\nlatent: true\nexports: [decode]\n{LATENT['causal']}\n")
    name = "decode_hopper.attend_split"
    all_of_them = "; ".join((name, f"{name} of float8, scaled by head", f"{name} of float8, scaled by key"))
    assert compiler.run(NAMED, tmp_path) == [all_of_them, all_of_them, ""]
