"""What is recorded of measurements, and the page made of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before a package imports triton

from attnforge import bench, given, peers
from attnforge.bench import Machine, Result, Row
from attnforge.calls import Sizes

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def record() -> Any:
    return peers.module("record", ROOT / "benchmarks" / "record.py")


def test_the_page_is_what_the_records_make_of_it(record: Any) -> None:
    assert (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8") == record.page(), "make bench"


def test_sets_name_variants_and_peers_that_there_are(record: Any) -> None:
    for one in record.SETS.values():
        specs = [spec for name in one.specs for spec in given.load([name]).values()]
        assert len(specs) == len(one.specs) and set(one.peers) <= set(bench.PEERS)
        assert all(spec.algorithm.backward or one.replays or not one.backward for spec in specs)
        assert all(s.heads % s.kv_heads == 0 for s in one.sizes)


def test_rope_outside_is_what_rope_inside_is(record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[torch.Tensor] = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(bench, "replayed", lambda function: found.append(function()) or float(len(found)))
    rows = record.outside([Sizes(1, 20, 20, 2, 2, 16, 16, "fp32")], "cpu")
    assert rows == [{"T": 20, "inside": 1, "outside, compiled": 2, "outside, eager": 3, "without RoPE": 4}]
    inside, compiled, eager, without = found
    assert torch.allclose(inside, compiled, atol=1e-5) and torch.allclose(inside, eager, atol=1e-5)
    assert not torch.allclose(inside, without, atol=1e-2)


def test_a_peer_is_told_by_its_time_over_ours(record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes(16, 1024, 1024, 32, 32, 64, 64, "bf16")
    pairs = 16 * 32 * 1024 * 1024
    rows = (Row(bench.OURS, 0.25, 0.5, 66.0, 260.0), Row("flex", 0.3, 0.75), Row("fla", note="has no packed"))
    text = bench.document(Machine("a card", "2.11", "3.6"), [Result("causal", sizes, pairs, rows)])
    (tmp_path / "variants.json").write_text(text)
    (tmp_path / "rope_outside.json").write_text(json.dumps([{"T": 512, "inside": 0.0204}]))
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    page = record.page()
    assert "a card, torch 2.11, triton 3.6." in page and "fla" not in page
    assert "| 1024 x 1024 | 0.250 | 550 | 0.500 | 687 | 260.0 | 1.20 / 1.50 |" in page
    assert "| 512 | 0.020 |" in page
