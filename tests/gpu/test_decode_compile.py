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
    products = made.matrix.get("mma.sync", 0), made.matrix.get("wgmma.mma_async", 0)
    print(case.name, made.spills, made.shared, *products)
"""
SPECS = {
    "causal": "mask: [causal]",
    "sinking window": "rope: {layout: half}\nmask: [causal, sliding_window: {size: 128}]\nsink: true",
    "drafted": "rope: {layout: interleaved}\nmask: [tree]\nscore: [softcap: {cap: 30.0}, alibi]",
    "documents": "mask: [causal, segments]",
    "latent": "latent: true\nmask: [causal]",
}
NARROW = [name for name in SPECS if name != "latent"]
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
        # 64 queries and three tiles of 32 keys, which are values too; no two warps make the same scores: a product has
        # an instruction for 16 columns of q, and one for 16 keys
        assert 2 * (64 + 3 * 32) * width <= shared <= 227 * 1024
        assert at_once == width // 16 + 32 // 16
        return
    # a loop that loads as it goes would have one tile of keys and one of values at most
    assert shared >= 2 * 2 * (16 if width >= 256 else 32) * width * 2
