"""Kernels of decoding, compiled without a GPU: tiles of keys are under way while others are multiplied."""

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
    print(case.name, made.registers, made.spills, made.shared, made.matrix.get("mma.sync", 0))
"""
SPECS = {
    "causal": "mask: [causal]",
    "sinking window": "rope: {layout: half}\nmask: [causal, sliding_window: {size: 128}]\nsink: true",
    "drafted": "rope: {layout: interleaved}\nmask: [tree]\nscore: [softcap: {cap: 30.0}, alibi]",
    "documents": "mask: [causal, segments]",
}


@pytest.mark.parametrize(("name", "width"), [("causal", 64), *((name, 128) for name in SPECS), ("causal", 256)])
def test_kernels_compile(compiler: Compiler, tmp_path: Path, name: str, width: int) -> None:
    (tmp_path / "some.yaml").write_text(f"name: some\nexports: [decode]\n{SPECS[name]}\n")
    lines = compiler.run(CODE, tmp_path, str(width))
    found = {kernel: [int(x) for x in rest] for kernel, *rest in map(str.split, lines)}
    assert list(found) == ["attend_split", "join_splits", "append_rows"]
    _, spills, shared, products = found["attend_split"]
    assert products > 0
    assert spills <= 8
    # a loop that loads as it goes would have one tile of keys and one of values at most
    assert shared >= 2 * 2 * (16 if width == 256 else 32) * width * 2
