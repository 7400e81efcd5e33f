"""The example at the beginning of docs/serving.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import devices
import pytest
import torch
import unformatted
import unrewritten

from attnforge.source import resources

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[1] / "docs" / "serving.md"
NAME = "llama3_of_the_page"  # its suite and other tests import packages, too


def test_the_first_example_of_the_page_runs(tmp_path: Path) -> None:
    text = resources.variants()["llama3"].read_text()
    path = tmp_path / f"{NAME}.yaml"
    path.write_text(text.replace("name: llama3\n", f"name: {NAME}\n"))
    unformatted.write(path, tmp_path / NAME)
    decoding = unrewritten.module(tmp_path, f"{NAME}.decode")
    block = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[0]
    assert "generated.llama3" in block and len(block.splitlines()) < 30
    names: dict[str, Any] = {}
    with devices.default():
        exec(compile(block.replace("generated.llama3", NAME), str(PAGE), "exec"), names)

    # the page goes on: one more token of each sequence
    given = {name: names[name] for name in ("cos", "sin")}
    new, positions = torch.randn_like(names["k"][:2]), names["seq_lens"].clone()
    slots = names["page_table"][[0, 1], positions // 8].long() * 8 + positions % 8
    decoding.append(new, new, names["k_cache"], names["v_cache"], slots, positions=positions, **given)
    names["seq_lens"] += 1
    out = decoding.attend_with_cache(
        names["q"], names["k_cache"], names["v_cache"], names["seq_lens"], page_table=names["page_table"], **given
    )
    parts = zip(names["k"].split([5, 19]), names["v"].split([5, 19]), new, strict=True)
    for i, (k, v, last) in enumerate(parts):
        rows = (torch.cat([x, last[None]])[None] for x in (k, v))
        wanted = names["reference"](names["q"][i : i + 1], *rows, **given)
        torch.testing.assert_close(out[i : i + 1], wanted, rtol=1e-3, atol=1e-3)
